"""One HTML file out of parts: style, fragments, data and scripts, all inside it; nothing is loaded from anywhere."""

from __future__ import annotations

import html
import json
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any


def asset(name: str) -> str:
    """The text of a file in assets/."""
    return (resources.files("ringdp.tools.pages") / "assets" / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Tab:
    """A part of a page that is shown alone. name: of its anchor; body: HTML."""

    name: str
    title: str
    body: str


def data(name: str, value: Any) -> str:
    """A JSON value that scripts of the page find by its id; `<` cannot end the element early."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def document(title: str, tabs: list[Tab], scripts: list[str]) -> str:
    """The whole file. scripts: JavaScript, run in this order at the end of the body. One tab alone gets no tab bar."""
    code = "\n".join(f"<script>{script}</script>" for script in [asset("theme.js"), *scripts])
    bar, panels = (_bar(tabs), _panels(tabs)) if len(tabs) > 1 else ("", tabs[0].body)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{asset("theme.css")}</style>
</head>
<body>
<header>
<h1>{html.escape(title)}</h1>
{bar}<button type="button" id="theme" aria-describedby="theme-now">Theme</button>
<span id="theme-now">as the system</span>
</header>
<main>
{panels}
</main>
{code}
</body>
</html>
"""


def _bar(tabs: list[Tab]) -> str:
    button = '<button type="button" role="tab" id="tab-{0}" aria-controls="{0}">{1}</button>'
    buttons = "\n".join(button.format(tab.name, html.escape(tab.title)) for tab in tabs)
    return f'<div role="tablist" aria-label="Pages">\n{buttons}\n</div>\n'


def _panels(tabs: list[Tab]) -> str:
    panel = '<section role="tabpanel" id="{0}" aria-labelledby="tab-{0}">\n{1}</section>'
    return "\n".join(panel.format(tab.name, tab.body) for tab in tabs)


def write(command: str, file: Path, page: str) -> int:
    """The exit status: 0, or 2 when the file cannot be written, which one line says."""
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as problem:
        print(f"{command}: cannot write {file}: {problem.strerror}", file=sys.stderr)
        return 2
    print(f"{file}: {len(page.encode()) // 1000} kB, one file; open it in a browser")
    return 0
