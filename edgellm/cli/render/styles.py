"""Marks and colours of rendered text. Only the sixteen colours that every theme, light or dark, has chosen itself."""

from __future__ import annotations

from typing import TextIO

import msgspec

from edgellm.cli.terminal import encodes, has_colour
from edgellm.inert import inert


class Styles(msgspec.Struct, frozen=True):
    """SGR codes by purpose, "" for none, and the signs that the stream's encoding has."""

    strong: str = "1"
    emphasis: str = "3"
    strike: str = "9"
    faint: str = "2"
    link: str = "4"
    headings: tuple[str, ...] = ("1;4", "1", "1;3")  # by level; deeper ones look like the last
    code: str = "36"
    code_mark: str = ""  # around code in a line, where it has no colour of its own
    bullet: str = "•"
    rule: str = "─"
    bar: str = "│"
    cross: str = "┼"


def styles_for(stream: TextIO) -> Styles:
    """What this stream can show. Without colour, weight and slant remain: they are no colours."""
    styles = Styles()
    if not has_colour(stream):
        styles = msgspec.structs.replace(styles, code="", code_mark="`")
    if not encodes(stream, "•─│┼"):
        styles = msgspec.structs.replace(styles, bullet="*", rule="-", bar="|", cross="+")
    return styles


def paint(text: str, *codes: str) -> str:
    """`text` made inert, in the looks that `codes` name; it ends them itself."""
    text = inert(text)
    looks = ";".join(filter(None, codes))
    return f"\x1b[{looks}m{text}\x1b[0m" if looks and text else text
