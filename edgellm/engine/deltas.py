"""Pieces of text on their way: which may be joined, and how."""

from __future__ import annotations

from edgellm.contracts.events import Event, ReasoningDelta, TextDelta

Delta = TextDelta | ReasoningDelta


def joined(before: Event | None, after: Event) -> Delta | None:
    """Two pieces of one text, one after the other, as one; None where they are not that."""
    for kind in (TextDelta, ReasoningDelta):
        if isinstance(before, kind) and isinstance(after, kind) and before.choice == after.choice:
            return kind(before.text + after.text, before.choice, (*before.tokens, *after.tokens))
    return None
