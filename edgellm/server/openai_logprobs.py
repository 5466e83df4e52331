"""Log probabilities in OpenAI's two forms: a list of entries for chats, columns for completions."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from edgellm.contracts.events import Alternative, TokenInfo

LEAST = -9999.0  # JSON has no infinity; what OpenAI writes for tokens that cannot be


def chat_entries(tokens: Sequence[TokenInfo]) -> list[dict[str, Any]]:
    return [_entry(token) | {"top_logprobs": [_entry(other) for other in token.top]} for token in tokens]


def _entry(token: TokenInfo | Alternative) -> dict[str, Any]:
    """A token that is part of a character shows its bytes escaped; `bytes` is exact always."""
    return {
        "token": token.raw.decode("utf-8", "backslashreplace"),
        "bytes": list(token.raw),
        "logprob": _finite(token.logprob),
    }


class CompletionColumns:
    """The legacy object, piece by piece: `text_offset` counts characters of the choice's text, over all pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def take(self, tokens: Sequence[TokenInfo]) -> dict[str, Any]:
        """The columns of these tokens, which follow those taken before."""
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.raw))
        return {
            "tokens": [_name(token) for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [_row(token) for token in tokens],
            "text_offset": offsets,
        }


def _row(token: TokenInfo) -> dict[str, float] | None:
    """The chosen token and the alternatives, by name; of two alternatives of one name the likelier has it."""
    if not token.top:
        return None
    row = {_name(token): _finite(token.logprob)}
    for other in token.top:
        row.setdefault(_name(other), _finite(other.logprob))
    return row


def _name(token: TokenInfo | Alternative) -> str:
    """As OpenAI writes it: what is no text of its own is marked and escaped."""
    try:
        return token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + token.raw.decode("utf-8", "backslashreplace")


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
