"""Pages opened in a real browser, one for the whole session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, start, why_no_browser


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    """One browser for all tests. Skips where there is none, and fails there with CI=true."""
    reason = why_no_browser()
    if reason:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    started = start()
    yield started
    started.quit()


@pytest.fixture
def opened(driver: Any, tmp_path: Path) -> Iterator[Callable[[str], Browser]]:
    """opened(html): that page in the browser. At the end nothing may have been complained of."""
    browser = Browser(driver)

    def show(page: str) -> Browser:
        file = tmp_path / "page.html"
        file.write_text(page, encoding="utf-8")
        driver.get(file.as_uri())
        return browser

    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.complaints()
    yield show
    assert browser.complaints() == []
