"""From text to tokens: GitHub's dialect, made inert, and cut into blocks of bounded size."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from edgellm.inert import inert

_LISTS = {"bullet_list_open": "bullet_list_close", "ordered_list_open": "ordered_list_close"}
_LINE_ENDS = {0x2028: "\n", 0x2029: "\n"}  # Python counts them as such, Markdown does not


def parser() -> MarkdownIt:
    """HTML is text: a tag that is not shown (`<stdio.h>`) would be lost, and none is obeyed. So are link definitions,
    which would vanish once they are complete.
    """
    made = MarkdownIt("gfm-like", {"html": False}).disable("reference")
    made.core.ruler.push("inert", _make_inert)
    made.core.ruler.push("pieces", _cut_lists)
    return made


def readable(text: str) -> str:
    """A piece of an answer as it may reach the parser and the screen."""
    return inert(text).translate(_LINE_ENDS)


def _make_inert(state: StateCore) -> None:
    """Once more after parsing: entities (`&#x202e;`) become characters only there."""
    for token in state.tokens:
        _clean(token)


def _clean(token: Token) -> None:
    token.content = inert(token.content)
    token.info = inert(token.info)
    for child in token.children or ():
        _clean(child)


def _cut_lists(state: StateCore) -> None:
    """Make each item of an outermost list a list of its own.

    A list that grows is then parsed and drawn from its last item on, not from its first.
    """
    cut: list[Token] = []
    opened: Token | None = None
    for token in state.tokens:
        if token.level == 0 and token.type in _LISTS:
            opened = token
        elif opened is not None and token.level == 0:
            opened = None
        elif opened is not None and token.level == 1 and token.type == "list_item_open":
            cut += [opened.copy(map=token.map), token]
        elif opened is not None and token.level == 1 and token.type == "list_item_close":
            cut += [token, Token(_LISTS[opened.type], opened.tag, -1, block=True)]
        else:
            cut.append(token)
    state.tokens = cut
