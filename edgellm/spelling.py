"""Which of the names that there are was meant by one that is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from edgellm.setting import PREFIX


def meant(name: str, known: Iterable[str]) -> str:
    """The question whether the nearest of these was meant, for a hint to begin with; empty where none is near.

    What a name of two letters or more is the beginning of is nearer than what is only spelt alike.
    """
    bare = {_bare(each): each for each in known}
    short = _bare(name)
    begun = [each for each in bare if len(short) > 1 and each.startswith(short)]
    near = begun if len(begun) == 1 else difflib.get_close_matches(short, bare, n=1)
    return f"did you mean {bare[near[0]]}? " if near else ""


def _bare(name: str) -> str:
    """Without what all variables, or all options, share: that makes none of them near."""
    return name.removeprefix(PREFIX).lstrip("-").lower()
