"""A page out of parts, and where it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ringdp.tools.pages.document import Tab, asset, data, document, write

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


def test_a_page_is_written(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "b.html"
    assert write("ringdp x", file, "ä" * 1000) == 0
    assert file.read_text(encoding="utf-8") == "ä" * 1000
    assert capsys.readouterr().out == f"{file}: 2 kB, one file; open it in a browser\n"


def test_a_folder_is_no_file(tmp_path: Path, capsys: Any) -> None:
    assert write("ringdp x", tmp_path, "") == 2
    assert capsys.readouterr().err == f"ringdp x: cannot write {tmp_path}: Is a directory\n"


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "typo" / "b.html"
    assert write("ringdp x", file, "") == 2
    assert capsys.readouterr().err == f"ringdp x: cannot write {file}: No such file or directory\n"
    assert not file.parent.exists()
