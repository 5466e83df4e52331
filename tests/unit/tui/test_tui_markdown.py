"""Answers as Markdown: whole whatever the pieces, nothing lost, nothing that acts on the terminal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from chat_app import until
from edgellm_tui import messages
from edgellm_tui.app import ChatApp
from edgellm_tui.markdown.answer import AnswerText
from edgellm_tui.markdown.code import PIECE, CodeBlock
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Label

BIDI_AND_CONTROLS = [*map(chr, range(32)), "\x7f", *map(chr, range(0x80, 0xA0)), *map(chr, (0x202E, 0x2066, 0x202A))]


class Page(App[None]):
    """One answer, as the chat shows it."""

    CSS_PATH: ClassVar = ChatApp.CSS_PATH

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.text = text
        self.copied: list[messages.CopyAsked] = []

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield AnswerText(self.text)

    @property
    def answer(self) -> AnswerText:
        return self.query_one(AnswerText)

    def on_copy_asked(self, message: messages.CopyAsked) -> None:
        self.copied.append(message)

    def on_mount(self) -> None:
        self.animation_level = "none"


@asynccontextmanager
async def page(text: str = "", size: tuple[int, int] = (80, 60)) -> AsyncIterator[tuple[Page, Pilot[None]]]:
    app = Page(text)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


def lines(app: Page) -> list[str]:
    """What is on the screen, top to bottom, without the empty end."""
    strips = app.screen._compositor.render_strips()
    found = [strip.text.rstrip() for strip in strips]
    while found and not found[-1]:
        found.pop()
    return found


def drawn(text: str) -> str:
    async def draw() -> str:
        async with page(text) as (app, _):
            return "\n".join(lines(app))

    return asyncio.run(draw())


SAMPLES = (
    "Plain text with **bold**, *italic*, `code` and a [link](https://example.org/a_(b)).",
    "# Heading\n\nText.\n\n## Second\n\n- one\n- two **bold**\n  - deeper\n    - deepest\n- three\n\nAfter.",
    "1. first\n2. second\n\n   with a second paragraph\n3. third\n   ```python\n   x = 1\n   ```\n10. tenth\n\nDone.",
    "```python\ndef f(x):\n    '''A string\n    over lines'''\n    return x\n```\nText.\n\n```\nplain\n\n\n```\n",
    "| a | b |\n|---|---|\n| 1 | two words |\n| 3 | `four` |\n\nAfter the table.",
    "> A quotation\n> over two lines\n\n---\n\nLine  \nbroken.\n\n* star\n* list",
    "#include <stdio.h>\nint main() { return a < b && c > d; }\n\n<div>not HTML</div>\n\n<think>hm</think> ok",
    "Unclosed ```python\nprint(1)\n\n- list\n\ntext *never closed\n\n[ref]: https://example.org\n",
    "日本語のテキスト。\n\n- 絵文字 👩‍👩‍👧‍👦 と\n- עברית\n\n" + "long " * 60,
)


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_pieces_make_the_same_page_as_the_whole(sample: str) -> None:
    chance = random.Random(20)

    async def compare(sample: str) -> None:
        async with page(sample) as (app, pilot):
            whole = lines(app)
            for pieces in (5, 30):
                cuts = sorted(chance.sample(range(len(sample)), pieces))
                await app.answer.remove()
                await app.query_one(VerticalScroll).mount(AnswerText())
                for start, end in zip([0, *cuts], [*cuts, len(sample)], strict=True):
                    await app.answer.write(sample[start:end])
                    if chance.random() < 0.2:
                        await pilot.pause()
                await app.answer.finish()
                await pilot.pause()
                assert lines(app) == whole, cuts

    asyncio.run(compare(sample))


def test_nothing_that_a_model_writes_vanishes() -> None:
    shown = drawn("Use `#include` of <stdio.h> and <b>tags</b> & &amp; entities.\n\n<script>x</script>\n")
    for part in ("<stdio.h>", "<b>tags</b>", "& & entities", "<script>x</script>"):
        assert part in shown


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b]52;c;cm0gLXJmIH4=\x07",  # sets the clipboard
        "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
        "\x1b[2J\x1b[H\x9b31m",
        "user\u202egpj.exe\u202c \u2066x\u2069",
        "&#27;]52;c;x&#7; &#x202e;reversed&#x9b;2J",
        "a\rb\x08c\x00d\x85e",
    ],
)
def test_control_sequences_are_inert_wherever_they_stand(hostile: str) -> None:
    places = (
        "{}",
        "# {}",
        "- {}",
        "`{}`",
        "```{}\n{}\n```",
        "| {} |\n|---|\n| {} |",
        "[{}](https://x.test)",
        "> {}",
    )
    shown = drawn("\n\n".join(place.replace("{}", hostile) for place in places) + "\n\nThe end.")
    assert "The end." in shown
    assert not [sign for sign in BIDI_AND_CONTROLS if sign in shown.replace("\n", "")]


def test_long_code_is_drawn_in_pieces_and_coloured_as_a_whole_at_the_end() -> None:
    code = "\n".join(["text = '''", *(f"line {number}" for number in range(3 * PIECE)), "'''", "print(text)"])

    async def draw() -> None:
        async with page() as (app, pilot):
            for line in f"```python\n{code}\n```\n".splitlines(keepends=True):
                await app.answer.write(line)
            await app.answer.finish()
            await pilot.pause()
            block = app.query_one(CodeBlock)
            assert block.code == code
            pieces = [str(label.visual) for label in block.query(Label)]
            assert "\n".join(pieces) == code
            assert len(pieces) == 4
            middle = list(block.query(Label))[1]
            strip = middle.render_line(3)
            assert len({segment.style for segment in strip if segment.text.strip()}) == 1  # all of it is a string

    asyncio.run(draw())


def act(text: str, use: Callable[[Page, Pilot[None]], Awaitable[None]]) -> list[messages.CopyAsked]:
    async def run() -> list[messages.CopyAsked]:
        async with page(text) as (app, pilot):
            await use(app, pilot)
            await until(lambda: app.copied)
            return app.copied

    return asyncio.run(run())


def test_code_is_copied_without_its_frame_by_a_key() -> None:
    async def use(app: Page, pilot: Pilot[None]) -> None:
        app.query_one(CodeBlock).focus()
        await pilot.press("c")

    (asked,) = act("Text.\n\n```python title\nif x:\n    pass\n```\n", use)
    assert (asked.text, asked.what) == ("if x:\n    pass", "the code")


@pytest.mark.parametrize("address", ["https://example.org/a_(b)?c='d'", "javascript:alert(1)", "file:///etc/passwd"])
def test_addresses_are_shown_and_never_opened(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(App, "open_url", lambda self, url, **_: opened.append(url))

    async def use(app: Page, pilot: Pilot[None]) -> None:
        await pilot.click(AnswerText, offset=(2, 0))
        if not app.copied:  # markdown-it makes no link of what could run code
            app.post_message(messages.CopyAsked("", ""))

    (asked,) = act(f"[words](<{address}>)", use)
    assert opened == []
    if address.startswith("https"):
        assert asked.text == address.replace("'", "'")
