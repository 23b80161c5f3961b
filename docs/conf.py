"""Sphinx: the documents of the repository and the API reference as one site (`make docs`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from docstrings import rst_of  # noqa: E402

project = "ringdp"
author = "the ringdp authors"
copyright = author
version = release = re.search(r'__version__ = "(.+)"', (ROOT / "python/ringdp/__init__.py").read_text())[1]

# The sources are the repository itself, so links between documents are the same here and in the repository.
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/api.rst",
    "csrc/README.md",
    "csrc/device/README.md",
    "benchmarks/README.md",
]
exclude_patterns = [".*", "build", "python", "tests", "shared", "benchmarks/results"]
PAGES = {
    "Guides": "install launch trainers elastic multi-host support "
    "ddp local zero checkpoint shared-memory devices wire-types tools tuning",
    "Background": "numerics errors footguns errata security limits why-synchronous",
    "Reference": "api settings index",
}
DEVELOPMENT = "/CONTRIBUTING /docs/design /csrc/README /csrc/device/README /benchmarks/README /CHANGELOG"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
highlight_language = "text"
html_theme = "furo"
html_title = f"ringdp {version}"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_mock_imports = ["lightning", "transformers"]


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Gives the first page what a repository shows by itself: the list of all pages."""
    if name != root_doc:
        return
    groups = {caption: [f"/docs/{page}" for page in pages.split()] for caption, pages in PAGES.items()}
    groups["Development"] = DEVELOPMENT.split()
    for caption, pages in groups.items():
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def convert(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings as Sphinx needs them."""
    lines[:] = rst_of(lines)


def add_index(app: Sphinx, exception: Exception | None) -> None:
    """Sends readers of the folder to its first page."""
    (Path(app.outdir) / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n')


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", convert)
    app.connect("build-finished", add_index)
