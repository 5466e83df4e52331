"""TokenRunner over the torch model: steps, drafts, and the paged pool behind numbered sequences."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager

import msgspec
import torch
from edgellm_kernels.pages import Ragged
from torch import Tensor

from edgellm.contracts.chain import SAMPLERS
from edgellm.contracts.checks import check_length, check_rows, check_sequence
from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import PREVIOUS, Parked, Result, Row, RunnerInfo
from edgellm.errors import GenerationFailed
from edgellm_torch.attention import Step
from edgellm_torch.costs import max_outputs
from edgellm_torch.kv import KVMemory, table
from edgellm_torch.model import Model
from edgellm_torch.pool import BLOCK, Pool
from edgellm_torch.reporting import computing
from edgellm_torch.sampling.drawing import Drawing
from edgellm_torch.transfer import upload

DRAFT_TOKENS = 15  # longest draft of a row: with the token itself a tile of the reference kernels


class Ticket(msgspec.Struct, frozen=True, eq=False):
    """A step in flight: its rows, and what they draw, if they do. `ran`: there was room."""

    rows: Sequence[Row]
    ran: bool = True
    drawing: Drawing | None = None


class ParkedSequence:
    """A copy of one sequence's pages. `forgotten`: blocks of each group that its windows had let go of."""

    def __init__(self, owner: object, length: int, forgotten: list[int], pages: list[list[Tensor]]) -> None:
        self.owner = owner
        self.forgotten = forgotten
        self.pages = pages
        self._length = length

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for layer in self.pages for tensor in layer)


class TorchRunner:
    """One loaded model. Not thread-safe: one thread calls it.

    A GPU works by itself: there a second step is taken while one runs. What moves sequences about is bookkeeping, and
    what it copies follows what the device has been given before.
    """

    def __init__(self, model: Model, pool: Pool, kv: KVMemory, placement: Placement) -> None:
        self._model = model
        self._pool = pool
        self._kv = kv
        capacity = -(-placement.capacity // BLOCK) * BLOCK
        self._info = RunnerInfo(
            engine="torch",
            context=placement.context,
            capacity=capacity,
            max_sequences=placement.max_sequences,
            batch_tokens=placement.batch_tokens,
            pipeline_depth=2 if all(device.startswith("cuda") for device in model.devices) else 1,
            max_outputs=max_outputs(placement),
            draft_tokens=DRAFT_TOKENS,
            exact_cells=capacity,  # no operation of a step lets a row's place or company decide about its bits
            samplers=SAMPLERS,
        )
        self._vocabulary = model.decoder.vocabulary
        self._flight: deque[Ticket] = deque()
        self._unsound: set[int] = set()  # sequences that drew nothing in the step collected last: no numbers
        self._closed = False

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def submit(self, rows: Sequence[Row]) -> Ticket:
        """Run a step, on a CPU to its end. Raises ValueError on bad rows, before anything has happened.

        Raises GenerationFailed when torch fails inside the step; then every sequence is as it was before.
        """
        self._check_open()
        if len(self._flight) >= self._info.pipeline_depth:
            raise ValueError(f"{len(self._flight)} steps are in flight: collect the first")
        if not all(ticket.ran for ticket in self._flight):
            return self._launched(Ticket(rows, ran=False))
        self._check(rows)
        copies = self._pool.reserve([(row.sequence, len(row.tokens) + len(row.draft)) for row in rows])
        if copies is None:
            return self._launched(Ticket(rows, ran=False))
        self._kv.copy(copies)
        try:
            with _stepping(), torch.inference_mode():
                drawing = self._run(rows)
        except GenerationFailed:
            for row in rows:
                self._pool.settle(row.sequence, row.start)
            raise
        for row in rows:
            if not row.draft:
                self._pool.settle(row.sequence, row.start + len(row.tokens))
        return self._launched(Ticket(rows, True, drawing))

    def collect(self, ticket: Ticket) -> list[Result]:
        """The results of the first step in flight, in the order of its rows. Raises ValueError for any other ticket.

        Raises GenerationFailed when torch fails; then the sequences of rows with drafts should be freed.
        """
        self._check_open()
        if not self._flight or ticket is not self._flight[0]:
            raise ValueError("steps are collected in the order of their submission, and once")
        self._flight.popleft()
        if not ticket.ran:
            return [Result(error="no_room") for _ in ticket.rows]
        if ticket.drawing is None:
            return [Result() for _ in ticket.rows]
        with _stepping(), torch.inference_mode():
            results = ticket.drawing.results()
        for row, result in zip(ticket.rows, results, strict=True):
            if row.draft:
                self._pool.settle(row.sequence, row.start + len(row.tokens) + max(0, len(result.tokens) - 1))
        results = [
            Result(error="nan") if row.sequence in self._unsound and _continues(row) else result
            for row, result in zip(ticket.rows, results, strict=True)
        ]
        self._unsound = {r.sequence for r, result in zip(ticket.rows, results, strict=True) if result.error == "nan"}
        return results

    def fork(self, source: int, target: int, length: int) -> None:
        """Share the first `length` tokens: blocks are counted, nothing is copied. Raises ValueError."""
        self._check_length(source, length)
        self._check_settled(target)
        if self._pool.lengths[target] or source == target:
            raise ValueError(f"sequence {target} is not empty")
        self._pool.fork(source, target, length)

    def truncate(self, sequence: int, length: int) -> None:
        """Drop the tail. Raises ValueError where `reusable` does not allow it."""
        self._check_length(sequence, length)
        self._pool.truncate(sequence, length)

    def free(self, sequence: int) -> None:
        self._check_settled(sequence)
        self._pool.free(sequence)

    def reusable(self, sequence: int, length: int) -> int:
        """`length` (at most the sequence's own) where everything the next token attends to is still there, else 0."""
        self._check_settled(sequence)
        if length < 0:
            raise ValueError(f"a length of {length} makes no sense")
        return self._pool.reusable(sequence, length)

    def park(self, sequence: int) -> ParkedSequence:
        """Copy the pages out."""
        self._check_settled(sequence)
        forgotten = [group.forgotten(sequence) for group in self._pool.groups]
        return ParkedSequence(self, self._pool.lengths[sequence], forgotten, self._kv.read(self._pool, sequence))

    def unpark(self, parked: Parked, sequence: int) -> None:
        """Bring a copy back. Raises ValueError: not this runner's copy, sequence not empty, no room."""
        self._check_settled(sequence)
        if not isinstance(parked, ParkedSequence) or parked.owner is not self:
            raise ValueError("this copy is not of this runner")
        if self._pool.lengths[sequence]:
            raise ValueError(f"sequence {sequence} is not empty")
        if not self._pool.open(sequence, parked.length, parked.forgotten):
            raise ValueError(f"no room to bring {parked.length} tokens back")
        self._kv.write(self._pool, sequence, parked.pages)

    def close(self) -> None:
        """Let go of weights and KV. A second call does nothing."""
        self._closed = True
        self._flight.clear()
        self.__dict__.pop("_model", None)
        self.__dict__.pop("_kv", None)

    # -- inside

    def _launched(self, ticket: Ticket) -> Ticket:
        self._flight.append(ticket)
        return ticket

    def _run(self, rows: Sequence[Row]) -> Drawing | None:
        """Put a step on the device: what the rows compute, and what those that are sampled draw."""
        device = self._model.device
        starts = tuple(row.start for row in rows)
        counts = tuple(len(row.tokens) + len(row.draft) for row in rows)
        places = [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
        positions = upload([position for place in places for position in place], torch.int64, device)
        steps = []
        for group in self._pool.groups:
            tables = [group.tables[row.sequence] for row in rows]
            slots = [slot for blocks, place in zip(tables, places, strict=True) for slot in _slots(blocks, place)]
            ragged = Ragged(starts, counts, table(tables, device))
            steps.append(Step(ragged, positions, upload(slots, torch.int64, device)))
        wanted: list[int] = []
        first: list[int] = []
        end = 0
        for row, count in zip(rows, counts, strict=True):
            end += count
            first.append(len(wanted) if row.sample is not None else -1)
            if row.sample is not None:
                wanted += range(end - len(row.draft) - 1, end)
        logits = self._model(self._tokens(rows), self._kv, steps, upload(wanted, torch.int64, device))
        return None if logits is None else Drawing(rows, first, logits)

    def _tokens(self, rows: Sequence[Row]) -> Tensor:
        """Of all rows and their drafts, int64; those of PREVIOUS come from what the step before is drawing."""
        tokens = [token for row in rows for token in (*row.tokens, *row.draft)]
        device = self._model.device
        places = [place for place, token in enumerate(tokens) if token == PREVIOUS]
        if not places:
            return upload(tokens, torch.int64, device)
        before = self._flight[-1].drawing
        assert before is not None
        order = before.places()
        taken = [order[row.sequence] for row in rows if _continues(row)]
        found = before.tokens.index_select(0, upload(taken, torch.int64, before.tokens.device))
        found = found.to(device, non_blocking=True)  # where the last layers are on another one
        if len(places) == len(tokens):
            return found
        return upload(tokens, torch.int64, device).index_copy(0, upload(places, torch.int64, device), found)

    def _check(self, rows: Sequence[Row]) -> None:
        """Raise ValueError on rows that make no sense, before anything has happened."""
        guessed = {row.sequence for ticket in self._flight for row in ticket.rows if row.draft}
        for row in rows:
            if row.sequence in guessed:
                raise ValueError(f"sequence {row.sequence} has a draft in flight: nobody knows how long it will be")
        check_rows(rows, self._info, self._pool.lengths)
        before = self._flight[-1].drawing if self._flight else None
        drawn = before.places() if before is not None else {}
        for row in rows:
            known = () if _continues(row) and row.sequence in drawn else row.tokens
            for token in (*known, *row.draft):
                if not 0 <= token < self._vocabulary:
                    raise ValueError(f"token {token} is not one of the {self._vocabulary} in the vocabulary")

    def _check_sequence(self, sequence: int) -> None:
        self._check_open()
        check_sequence(sequence, self._info)

    def _check_settled(self, sequence: int) -> None:
        """Raise ValueError where a step in flight works on it, too."""
        self._check_sequence(sequence)
        if any(row.sequence == sequence for ticket in self._flight for row in ticket.rows):
            raise ValueError(f"a step in flight works on sequence {sequence}: collect that first")

    def _check_length(self, sequence: int, length: int) -> None:
        self._check_settled(sequence)
        check_length(length, sequence, self._pool.lengths)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the runner is closed")


def _stepping() -> AbstractContextManager[None]:
    return computing("PyTorch failed in a step", "try again; if it happens again, the model may not fit this machine")


def _continues(row: Row) -> bool:
    """Whether a row's token is what the step before draws."""
    return len(row.tokens) == 1 and row.tokens[0] == PREVIOUS


def _slots(blocks: Sequence[int], positions: range) -> list[int]:
    """Where the keys and values of a sequence's positions go, by its table."""
    return [blocks[position // BLOCK] * BLOCK + position % BLOCK for position in positions]
