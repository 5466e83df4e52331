"""Markdown on a terminal: the same whatever pieces it comes in, calm while it grows, harmless whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy

import pyte
import pytest
import wcwidth
from hypothesis import given
from hypothesis import strategies as st
from terminals import Terminal, painted

from edgellm.cli.render.document import Markdown, Plain
from edgellm.cli.render.measure import rows
from edgellm.cli.render.pending import mended, presentable
from edgellm.cli.render.styles import Styles, styles_for

DOCUMENT = """\
# A *first* heading

A paragraph with **bold words that go on for a while**, `code`, ~~an error~~ and a
line break. 答案是很长的中文，没有空格，也要在行尾折断，不能丢字。 👩‍👩‍👧 🇩🇪 e\u0301
See [the docs](https://example.org/a?b=1&c=2) or <https://example.org>.
---
1. first, which is long enough to be broken at the edge of a narrow terminal
2. second

   ```python
   def f(x):
       return "an item's code"
   ```
10. tenth
    - nested
      * deeper **still**

> a quote
> > of a quote

| name | what it is | count |
|:-----|:----------:|------:|
| `a`  | one thing  |     1 |
| b    | **another** thing that is long | 1,000 |

```c
int main(void) {          /* a line of code that is longer than the terminal is wide, and stays whole */
\treturn 0;
}
```
The end with 2 * 3 ** 4 and snake_case_names.
"""


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # counts the parts of an emoji one by one, as the terminal in memory does
    monkeypatch.delenv("TERM_PROGRAM", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


def cut(text: str, sizes: Iterator[int] | list[int]) -> list[str]:
    """`text` in pieces of these sizes, over and over."""
    pieces: list[str] = []
    at = 0
    sizes = list(sizes)
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    return pieces or [""]


def plain(lines: list[str]) -> list[str]:
    return [wcwidth.strip_sequences(line) for line in lines]


def whole(text: str, width: int = 79) -> list[str]:
    """All lines, rendered at once."""
    document = Markdown(Styles())
    return [*document.feed(text, width), *document.finish(width)]


def test_what_it_looks_like() -> None:
    assert plain(whole(DOCUMENT, 40)) == [
        "A first heading",
        "",
        "A paragraph with bold words that go on",
        "for a while, code, an error and a",
        "line break. 答案是很长的中文，没有空格，",
        "也要在行尾折断，不能丢字。 👩‍👩‍👧 🇩🇪 e\u0301",
        "See the docs",
        "(https://example.org/a?b=1&c=2) or",
        "https://example.org.",
        "─" * 40,
        "1. first, which is long enough to be",
        "   broken at the edge of a narrow",
        "   terminal",
        "2. second",
        "",
        "   ── python " + "─" * 27,
        "   def f(x):",
        '       return "an item\'s code"',
        "   " + "─" * 37,
        "10. tenth",
        "    • nested",
        "      • deeper still",
        "",
        "│ a quote",
        "│ │ of a quote",
        "",
        "name │        what it is         │ count",
        "─────┼───────────────────────────┼──────",
        "a    │         one thing         │     1",
        "b    │   another thing that is   │ 1,000",
        "     │           long            │",
        "",
        "── c " + "─" * 35,
        "int main(void) {          /* a line of code that is longer than the terminal is wide, and stays whole */",
        "\treturn 0;",
        "}",
        "─" * 40,
        "The end with 2 * 3 ** 4 and",
        "snake_case_names.",
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (41, 8), (20, 4), (200, 60)])
def test_a_screen_shows_the_same_however_the_text_arrives(size: int, columns: int, lines: int) -> None:
    terminal, at_once = Terminal(columns, lines), Terminal(columns, lines)
    painted(cut(DOCUMENT, [size]), terminal)
    painted([DOCUMENT], at_once)
    assert terminal.text() == at_once.text()


BLOCK_MARKS = ["# ", "- ", "1. ", "2) ", "> ", "    ", "```", "```py\n", "~~~", "|", "|-|-|\n", "| a | b |\n", "---\n"]
SPAN_MARKS = ["**", "*", "`", "~~", "_", "[a](b)", "<http://x>", "&amp;", "&#27;", "\\", "===", "\x1b[2J"]
MARKS = st.sampled_from([*BLOCK_MARKS, *SPAN_MARKS, "\n", "\n\n", "  \n", "\r", "\t"])
WORDS = st.sampled_from(["word", "two words ", "语言", "👩‍👩‍👧", "e\u0301", "x" * 30, " "])
TEXTS = st.lists(st.one_of(MARKS, WORDS), max_size=40).map("".join)
SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@given(TEXTS, SIZES, st.integers(20, 100))
def test_pieces_never_change_the_lines(text: str, sizes: list[int], width: int) -> None:
    document = Markdown(Styles())
    lines: list[str] = []
    for piece in cut(text, sizes):
        lines += document.feed(piece, width)
        document.open(width)  # what is shown meanwhile leaves no trace
    assert [*lines, *document.finish(width)] == whole(text, width)


@given(TEXTS, SIZES, st.integers(20, 100))
def test_the_screen_agrees_where_the_open_block_fits(text: str, sizes: list[int], columns: int) -> None:
    text = text.replace(
        "\u200d", ""
    )  # this terminal draws joined emoji apart, so lines break elsewhere than was counted
    terminal, at_once = Terminal(columns, 60), Terminal(columns, 60)
    painted(cut(text, sizes), terminal)
    painted([text], at_once)
    assert terminal.text() == at_once.text()


@given(TEXTS, st.integers(20, 60))
def test_no_line_but_code_is_wider_than_asked(text: str, width: int) -> None:
    fenced = False
    for line in plain(whole(text.replace("`", "").replace("~", "").replace("\t", " "), width)):
        fenced = fenced or line.lstrip(" │•").startswith("──")  # indented code has rules, too
        assert fenced or wcwidth.width(line) <= max(width, 30)


@given(st.text(max_size=200), SIZES)
def test_control_sequences_never_reach_the_terminal(text: str, sizes: list[int]) -> None:
    for kind in ("markdown", "plain", "thought"):
        frames = painted(cut(text, sizes), Terminal(80, 24), kind)
        rest = re.sub(r"\x1b\[[0-9;]*m|\x1b\[\d*A|\x1b\[[CJK]|[\r\n\t]", "", "".join(frames))
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", rest)


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b]52;c;Zm9v\x07",
        "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\",
        "\x9b2J",
        "\u202egnp.exe",
        "&#27;[2J",
        "&#x202E;",
        "[a](http://b/\u202e)",
        "`\x1b[2J`",
        "| \x1b[2J |\n|---|\n| \x9bA |\n",
        "```\x1b[2J\n\x1b[2J\n```",
        "a\x1b",
    ],
)
def test_hostile_answers(hostile: str) -> None:
    written = "".join(painted([hostile], Terminal(80, 24)))
    assert not re.search("\x1b(?!\\[[0-9;]*m)|[\x07\x80-\x9f\u202a-\u202e\u2066-\u2069]", written)


def test_what_was_settled_is_never_written_again() -> None:
    """Each frame of a growing paragraph or list costs about what it adds, not what is there."""
    terminal = Terminal(80, 24)
    text = "".join(f"{number}. item number {number}\n" for number in range(1, 400))
    frames = painted(cut(text, [4]), terminal)
    assert sum(map(len, frames)) < 2 * len(text)
    assert terminal.text() == plain(whole(text))
    assert not any("\x1b[J" in frame for frame in frames)


def test_a_block_taller_than_the_screen_is_not_redrawn_beyond_it() -> None:
    text = "\n".join(f"line {number} **bold** of one paragraph" for number in range(100))
    terminal = Terminal(80, 10)
    frames = painted(cut(text, [11]), terminal)
    assert terminal.text() == plain(whole(text))
    steps = [int(found) for frame in frames for found in re.findall(r"\x1b\[(\d+)A", frame)]
    assert max(steps, default=0) < 10


def test_nothing_that_was_redrawn_stays_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that begins in the upper left corner, after `clear`: tmux keeps what is erased from there on."""
    erase = pyte.HistoryScreen.erase_in_display

    def as_tmux(screen: pyte.HistoryScreen, how: int = 0, *more: int, **private: bool) -> None:
        if (how, screen.cursor.x, screen.cursor.y) == (0, 0, 0):
            screen.history.top.extend(copy(screen.buffer[row]) for row in range(screen.lines))
        erase(screen, how, *more, **private)

    monkeypatch.setattr(pyte.HistoryScreen, "erase_in_display", as_tmux)
    terminal = Terminal(40, 10)
    painted(["| Fruit | Colour |\n", "|---|---|\n", "| Banana | Red |\n", "| Apple | Blue |\n"], terminal)
    assert [line for line in terminal.text() if "Colour" in line] == ["Fruit  │ Colour"]


def test_a_long_table_keeps_its_columns() -> None:
    table = "| n | text |\n|---|---|\n" + "".join(f"| {number} | {'word ' * number} |\n" for number in range(40))
    terminal = Terminal(80, 14)
    painted(cut(table, [9]), terminal)
    assert terminal.text() == plain(whole(table))


def test_a_table_too_wide_for_the_terminal_becomes_records() -> None:
    table = "| first | second | third |\n|-|-|-|\n| a | b | c |\n| d | e | a long one with words |\n"
    assert plain(whole(table, 20)) == [
        "first: a",
        "second: b",
        "third: c",
        "────────",
        "first: d",
        "second: e",
        "third: a long one",
        "  with words",
    ]


def test_resizing_while_it_grows() -> None:
    """Lines that are open are found again where a terminal has broken them anew."""
    terminal = Terminal(80, 24)
    narrow = Terminal(40, 24)
    first = "One paragraph, **bold** and long enough to take two lines once the terminal is only forty columns wide."
    assert rows(whole(first, 79)[0], 40) == 2
    painted([first, first], terminal)
    painted([first, first], narrow)
    assert "".join(narrow.text()).replace(" ", "") == "".join(terminal.text()).replace(" ", "")


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("", 1),
        ("x" * 10, 1),
        ("x" * 11, 2),
        ("x" * 30, 3),
        ("语" * 5, 1),
        ("x" + "语" * 5, 2),
        ("x" * 9 + "语", 2),
        ("\x1b[1m" + "x" * 10 + "\x1b[0m", 1),
        ("\tx", 1),
        ("\t\tx", 2),
    ],
)
def test_rows_of_a_line(line: str, count: int) -> None:
    assert rows(line, 10) == count


@pytest.mark.parametrize("rest", ["#", "##", "-", "1.", "> -", "``", "```py", "| a", "---", "**", "  "])
def test_a_line_is_held_back_until_it_is_clear_what_it_is(rest: str) -> None:
    assert presentable(["before"], rest) == ["before"]


@pytest.mark.parametrize("rest", ["# T", "- a", "**b", "a", "`c", "1. x"])
def test_a_clear_line_is_shown_while_it_grows(rest: str) -> None:
    assert presentable(["before"], rest) == ["before", rest]


def test_a_table_is_held_back_until_it_is_one() -> None:
    assert presentable(["a", "| h |"], "") == ["a"]
    assert presentable(["| h |", "|---|"], "| r") == ["| h |", "|---|"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a **b", "a **b**"),
        ("a **b** c", "a **b** c"),
        ("a **b*", "a **b**"),
        ("a **", "a "),
        ("a *b", "a *b*"),
        ("a `b", "a `b`"),
        ("a `b **c", "a `b **c`"),
        ("**a `b", "**a `b`**"),
        ("2 * 3", "2 * 3"),
        ("* item", "* item"),
        ("\\*a", "\\*a"),
        ("~~a", "~~a~~"),
        ("", ""),
    ],
)
def test_open_emphasis_is_closed_for_show(text: str, shown: str) -> None:
    assert mended([text])[-1] == shown


def test_plain_text_is_only_broken_at_spaces() -> None:
    document = Plain()
    lines = document.feed("# **no** markdown here\n\n    and 日本語", 10)
    assert [*lines, *document.finish(10)] == ["# **no**", "markdown", "here", "", "    and", "日本語"]


def test_colour_and_signs_follow_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from terminals import Tty

    assert styles_for(Tty()).code == "36"
    monkeypatch.setenv("NO_COLOR", "1")
    styles = styles_for(Tty())
    assert (styles.code, styles.code_mark, styles.strong) == ("", "`", "1")
    tty = Tty()
    monkeypatch.setattr(Tty, "encoding", "ascii")
    assert styles_for(tty).rule == "-"
