"""The pages name files that are there, and lead to places that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("edgellm", "backends", "kernels", "tui", "tests", "tools", "benchmarks", "docs")
FILES = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
PATH = re.compile(r"`([\w./-]+\.(?:py|h|md|jsonl))`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """What can be linked to in a page, as GitHub names its headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_are_there(page: Path) -> None:
    """By the end of the path: pages name the folder once, and then files in it."""
    known = {file.parts[-count:] for file in FILES for count in range(1, len(file.parts) + 1)}
    named = PATH.findall(page.read_text("utf-8"))
    assert not [path for path in named if Path(path).parts not in known]


def commands(page: Path) -> set[str]:
    """The commands in the first column of a page's tables."""
    rows = re.findall(r"^\| (`edgellm.*?) \|", page.read_text("utf-8"), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(?:edgellm )?([a-z]+)\b", row)}


def test_the_chinese_page_has_the_same_commands() -> None:
    assert "doctor" in commands(ROOT / "README.md")
    assert commands(ROOT / "docs/zh.md") == commands(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text("utf-8")):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
