"""Takes the pictures of this folder, in a real browser: the page of `ringdp ring`, and of `ringdp report RUN.json`.

    python docs/pictures/take.py [RUN.json]

Needs what the tests of pages need (chromium, chromedriver, selenium), and Pillow, which matplotlib brings.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))
from browser import Browser, start, why_no_browser  # noqa: E402
from ringdp.cli import main as command_line  # noqa: E402

THEMES = {"light": 1, "dark": 2}  # clicks on the button


def show(browser: Browser, page: Path, theme: str, height: int) -> None:
    """Opens a page in a theme, in a window of 1240 x height."""
    browser.driver.set_window_size(1240, height)
    browser.driver.get(page.as_uri())
    for _ in range(THEMES[theme]):
        browser.click("theme")


def take(browser: Browser, name: str) -> None:
    """Saves what the window shows, in 64 colours."""
    shown = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    shown.quantize(64).save(HERE / f"{name}.png", optimize=True)


def take_all(browser: Browser, page: Path) -> None:
    """The ring after its sums, a hierarchy on its way, and the calculator past the wall."""
    show(browser, page, "light", 1300)
    for _ in range(3):
        browser.click("step")
    take(browser, "ring")
    browser.choose("scheme", "hierarchy")
    browser.choose("ring-ranks", "6")
    for _ in range(4):
        browser.click("step")
    take(browser, "hierarchy")
    show(browser, page, "dark", 1400)
    browser.click("tab-wall")
    browser.at("ranks").clear()
    browser.at("ranks").send_keys("1024")
    take(browser, "calculator")


def take_report(browser: Browser, page: Path) -> None:
    """A run's loss, throughput, split and overlap."""
    show(browser, page, "light", 1500)
    take(browser, "report")


def main() -> int:
    """The exit status; 2 where there is no browser, or no report of a run in the file."""
    reason = why_no_browser()
    if reason:
        print(f"take.py: {reason}", file=sys.stderr)
        return 2
    browser = Browser(start())
    try:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "ring.html"
            command_line.main(["ring", "--html", str(page)])
            take_all(browser, page)
            for run in sys.argv[1:2]:
                page = Path(folder) / "report.html"
                if command_line.main(["report", run, "--html", str(page)]):
                    return 2
                take_report(browser, page)
    finally:
        browser.driver.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
