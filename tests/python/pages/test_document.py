"""The frame of every page: tabs and themes in a browser, data that cannot end its element, nothing from elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ringdp.pages.document import Tab, asset, data, document

TABS = [Tab("one", "First & <b>", "<p>body one</p>"), Tab("two", "Second", "<p>body two</p>")]


def test_data_cannot_end_its_element() -> None:
    value = {"text": "</script><b>", "numbers": [1, 2.5]}
    text = data("given", value)
    assert text.count("</script>") == 1 and text.endswith("</script>")
    assert json.loads(text[text.index(">") + 1 : -len("</script>")]) == value


def test_titles_are_escaped() -> None:
    assert "<title>a &lt;b&gt;</title>" in document("a <b>", TABS, [])


def test_one_tab_has_no_tab_bar() -> None:
    assert '<div role="tablist"' in document("two", TABS, [])
    assert '<div role="tablist"' not in document("one", TABS[:1], [])


def test_assets_are_the_package_s() -> None:
    assert asset("theme.js").startswith('"use strict"')
    with pytest.raises(FileNotFoundError):
        asset("none.js")


def test_tabs_by_click_and_by_key(opened: Any) -> None:
    page = opened(document("tabs", TABS, []))
    assert page.text("tab-one") == "First & <b>"
    assert page.at("one").is_displayed() and not page.at("two").is_displayed()
    page.click("tab-two")
    assert page.at("two").is_displayed() and not page.at("one").is_displayed()
    page.press("ARROW_RIGHT")
    assert page.focused() == "tab-one" and page.at("one").is_displayed()
    page.press("ARROW_LEFT")
    assert page.focused() == "tab-two" and page.at("tab-two").get_attribute("aria-selected") == "true"
    assert page.violations() == []


def test_an_anchor_opens_its_tab(opened: Any) -> None:
    page = opened(document("tabs", TABS, []))
    page.driver.get(page.driver.current_url + "#two")
    page.driver.refresh()
    assert page.at("two").is_displayed()
