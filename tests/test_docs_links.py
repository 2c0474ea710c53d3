"""No link between the pages is dead. `make docs` checks the same on the site that it builds."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "benchmarks" / "results" / "README.md", *(ROOT / "docs").glob("*.md")])
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+?)\s*$", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that a forge makes of the headings: lower case, no punctuation, hyphens for blanks."""
    titles = [match["title"] for match in HEADING.finditer(FENCED.sub("", page.read_text()))]
    texts = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return frozenset(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts)


def dead(page: Path) -> list[str]:
    found = []
    for match in LINK.finditer(CODE.sub("", page.read_text())):
        target = match["target"]
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    assert dead(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    """A check that finds nothing in a broken page protects nobody."""
    page = tmp_path / "page.md"
    page.write_text(
        "# The `first` one's part\n\n[a](#the-first-ones-part) [b](page.md#the-first-ones-part) [c](https://x.invalid/y)\n"
        "[d](#nope) [e](page.md#nope) [f](nope.md) `[g](code.md)`\n\n```\n# [h](code.md)\n```\n"
    )
    assert dead(page) == ["#nope", "page.md#nope", "nope.md"]


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"^ +- (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_the_index_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\((\S+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
