"""A real browser without a window: what is missing for one, starting it, and operating a page as a person does."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from typing import Any

BROWSERS, DRIVERS = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver",)
# Headless, as root in a container, with the same size everywhere.
ARGUMENTS = ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1240,1500", "hide-scrollbars")


def _first(names: tuple[str, ...]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


def why_no_browser() -> str | None:
    """What is missing, None when nothing is."""
    if not (_first(BROWSERS) and _first(DRIVERS)):
        return "no chromium with chromedriver (Debian: apt-get install chromium chromium-driver)"
    missing = [name for name in ("selenium", "axe_selenium_python") if not importlib.util.find_spec(name)]
    return f"not installed: {', '.join(missing)} (pip install selenium axe-selenium-python)" if missing else None


def start() -> Any:
    """A selenium driver; its owner quits it."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = _first(BROWSERS)
    for argument in ARGUMENTS:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(_first(DRIVERS)))
    driver.set_script_timeout(60)
    return driver


class Browser:
    """An opened page, operated as a person does: by clicks and keys."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def at(self, name: str) -> Any:
        """The element of this id."""
        return self.driver.find_element("id", name)

    def text(self, name: str) -> str:
        """What a person reads there."""
        return self.at(name).text

    def click(self, name: str) -> None:
        """A click on it."""
        self.at(name).click()

    def choose(self, name: str, value: str) -> None:
        """An option of a select, by its value."""
        from selenium.webdriver.support.select import Select

        Select(self.at(name)).select_by_value(value)

    def press(self, *keys: str) -> None:
        """Keys, wherever the focus is; by their names in selenium, or as they are."""
        from selenium.webdriver import ActionChains, Keys

        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def focused(self) -> str:
        """The id of the element that has the focus."""
        return self.driver.switch_to.active_element.get_attribute("id")

    def table(self, name: str) -> list[list[str]]:
        """The text of a table's body as it is rendered, by row and cell."""
        rows = "[...arguments[0].tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText))"
        return self.driver.execute_script(f"return {rows}", self.at(name))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until it holds; an error after half a minute."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 30, poll_frequency=0.05).until(lambda _: condition())

    def background(self) -> str:
        """The computed colour behind the page."""
        return self.driver.execute_script("return getComputedStyle(document.body).backgroundColor")

    def violations(self) -> list[str]:
        """What axe-core finds wrong, WCAG A and AA and its best practices."""
        from axe_selenium_python import Axe

        axe = Axe(self.driver)
        axe.inject()
        return [f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in axe.run()["violations"]]

    def complaints(self) -> list[str]:
        """What scripts have thrown or the browser has warned of since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
