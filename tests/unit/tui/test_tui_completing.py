"""What tab adds in the prompt of the chat."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chat_app import chatting, daemon, until
from edgellm_tui.completing import Completion, completed
from fake_service import HELLO


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("notes.md", "notebook.txt", ".hidden", "with spaces.txt", 'quo"te', "line\nbreak"):
        (tmp_path / name).touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.md").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES = {
    "a file": ("see @notes", "see @notes.md "),
    "as far as it is clear": ("see @n", "see @note"),
    "a folder": ("@d", "@docs/"),
    "what is in a folder": ("@docs/", "@docs/one.md "),
    "a name with spaces": ("@wi", '@"with spaces.txt" '),
    "a name in quotation marks": ('@"docs/o', '@"docs/one.md" '),
    "a hidden one where a dot was typed": ("@.", "@.hidden "),
    "no name that a question could not hold": ("@li", "@li"),
    "nothing of that name": ("@x", "@x"),
    "no folder of that name": ("@x\0/y/", "@x\0/y/"),
    "a command": ("/re", "/retry "),
    "a command that takes something": ("/mo", "/model "),
    "no such command": ("/x", "/x"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_clear_is_completed(name: str, here: Path) -> None:
    before, after = CASES[name]
    found = completed(before)
    assert found is not None
    assert found.text.rstrip() == after.rstrip()


def test_where_it_is_not_clear_the_choices_are_told(here: Path) -> None:
    assert completed("@note") == Completion("@note", ("notebook.txt", "notes.md"))
    assert completed("/h") == Completion("/h", ("/help", "/history"))


@pytest.mark.parametrize("text", ["", "what is", "me@no", "a /re", "@notes.md then"])
def test_where_nothing_has_begun_tab_goes_on(text: str, here: Path) -> None:
    assert completed(text) is None


def test_tab_in_the_prompt(home: Path, here: Path) -> None:
    async def use() -> None:
        async with chatting() as (app, pilot):
            area = app.chat.prompt.area
            area.insert("@docs/ and more")
            area.move_cursor((0, 6))
            await pilot.press("tab", *"x")
            assert area.text == "@docs/one.md x and more"
            area.text = ""
            await pilot.press(*"@note", "tab")
            assert area.text == "@note"
            await until(lambda: "notebook.txt  notes.md" in [str(told.message) for told in app._notifications])
            assert area.has_focus

    with daemon(HELLO):
        asyncio.run(use())
