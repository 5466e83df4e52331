"""Every case of docs/security.md is held by a test that bears its number, and no test bears another."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_case_has_its_test() -> None:
    told = set(re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "security.md").read_text("utf-8"), re.MULTILINE))
    sources = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    tested = {number.lstrip("0") for text in sources for number in re.findall(r"def test_case_(\d\d)_", text)}
    assert len(told) == 21
    assert tested == told
