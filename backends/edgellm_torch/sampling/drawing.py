"""What one step draws: on the device as soon as its logits are there, told when the step is collected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgellm.contracts.runner import Logprob, Result, Row
from edgellm_torch.sampling.chain import choose, draw, remembers, told
from edgellm_torch.sampling.logprobs import Measured, log_probabilities, measure, named
from edgellm_torch.sampling.penalties import Draw
from edgellm_torch.transfer import Download, upload


class Drawing:
    """The draws of a step's rows and their drafts, at each offset as if the drafts before it had come true.

    A draw that needs the carry of the one before, at an offset behind a row's own, waits until that is known.
    """

    def __init__(self, rows: Sequence[Row], first: Sequence[int], logits: Tensor) -> None:
        """`logits` [places, vocabulary], of which those of `rows[i]` and its drafts begin at `first[i]`; -1: none."""
        self._rows = rows
        self._first = first
        self._draws: list[Draw] = []
        self._order: dict[int, int] = {}  # place -> which of the draws it is
        for row, place in zip(rows, first, strict=True):
            for offset in range(_known(row)):
                self._order[place + offset] = len(self._draws)
                self._draws.append(_draw(row, offset, row.carry))
        everything = len(self._order) == logits.shape[0]
        drawn = draw(logits if everything else _taken(logits, list(self._order)), self._draws)
        self.tokens = drawn.tokens
        asked = [(place, at) for place, at in self._order.items() if self._draws[at].spec.logprobs is not None]
        self._asked = [place for place, _ in asked]
        self._counts = [self._draws[at].spec.logprobs or 0 for _, at in asked]
        measured: Sequence[Tensor] = ()
        if asked:
            tokens = _taken(drawn.tokens, [at for _, at in asked])
            measured = measure(_taken(logits, self._asked), tokens, max(self._counts))
        self._download = Download([*drawn, *measured])
        later = any(row.draft and row.sample is not None and remembers(row.sample) for row in rows)
        self._logits = logits if later else None

    def places(self) -> dict[int, int]:
        """Where in `tokens` the next one of each sequence stands that draws one and brings no draft."""
        return {
            row.sequence: self._order[place]
            for row, place in zip(self._rows, self._first, strict=True)
            if row.sample is not None and not row.draft
        }

    def results(self) -> list[Result]:
        """Of every row. Waits for the step; a row's answer ends at the first draft that did not come true."""
        tokens, sound, surprise, *measured = self._download.wait()
        self._chosen = told(self._draws, tokens.tolist(), sound.tolist(), surprise.tolist())
        found = named(Measured(*measured), self._counts) if measured else []
        self._logprobs = dict(zip(self._asked, found, strict=True))
        return [
            Result() if row.sample is None else self._result(row, place)
            for row, place in zip(self._rows, self._first, strict=True)
        ]

    def _result(self, row: Row, place: int) -> Result:
        assert row.sample is not None
        tokens: list[int] = []
        logprobs: list[Logprob] = []
        carry = row.carry
        for offset in range(len(row.draft) + 1):
            token, carry = self._token(row, offset, place + offset, carry)
            if token is None:
                return Result(error="nan")
            tokens.append(token)
            if row.sample.logprobs is not None:
                logprobs.append(self._logprob(place + offset, token, row.sample.logprobs))
            if offset < len(row.draft) and token != row.draft[offset]:
                break
        return Result(tuple(tokens), None, tuple(logprobs), carry)

    def _token(self, row: Row, offset: int, place: int, carry: float) -> tuple[int | None, float]:
        if place in self._order:
            return self._chosen[self._order[place]]
        assert self._logits is not None
        return choose(self._logits[place : place + 1], [_draw(row, offset, carry)])[0]

    def _logprob(self, place: int, token: int, count: int) -> Logprob:
        if place in self._logprobs:
            return self._logprobs[place]
        assert self._logits is not None
        return log_probabilities(self._logits[place : place + 1], [token], [count])[0]


def _known(row: Row) -> int:
    """How many draws of a row need nothing of each other."""
    if row.sample is None:
        return 0
    return 1 if remembers(row.sample) else 1 + len(row.draft)


def _draw(row: Row, offset: int, carry: float) -> Draw:
    assert row.sample is not None
    return Draw(row.sample, row.position + offset, row.history, row.draft[:offset], carry)


def _taken(tensor: Tensor, places: Sequence[int]) -> Tensor:
    if list(places) == list(range(tensor.shape[0])):
        return tensor
    return tensor.index_select(0, upload(places, torch.int64, tensor.device))
