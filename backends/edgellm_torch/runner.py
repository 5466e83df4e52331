"""TokenRunner over the torch model: steps, drafts, and the paged pool behind numbered sequences."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from edgellm_kernels.pages import Ragged
from torch import Tensor

from edgellm.contracts.chain import SAMPLERS
from edgellm.contracts.engine import Logprob, Parked, Placement, Result, Row, RunnerInfo
from edgellm.errors import GenerationFailed
from edgellm_torch.attention import Step
from edgellm_torch.costs import max_outputs
from edgellm_torch.kv import KVMemory, table
from edgellm_torch.model import Model
from edgellm_torch.pool import BLOCK, Pool
from edgellm_torch.sampling.chain import choose
from edgellm_torch.sampling.logprobs import log_probabilities
from edgellm_torch.sampling.penalties import Draw

DRAFT_TOKENS = 15  # longest draft of a row: with the token itself a tile of the reference kernels


class Ticket(msgspec.Struct, frozen=True):
    """A step that was submitted: its rows, their logits, and where each row's begin. `ran`: there was room."""

    rows: Sequence[Row]
    ran: bool
    logits: Tensor | None = None
    first: tuple[int, ...] = ()


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
    """One loaded model. Not thread-safe: one thread calls it."""

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
            max_outputs=max_outputs(placement),
            draft_tokens=DRAFT_TOKENS,
            exact_cells=capacity,  # no operation of a step lets a row's place or company decide about its bits
            samplers=SAMPLERS,
        )
        self._vocabulary = model.decoder.vocabulary
        self._ticket: Ticket | None = None
        self._closed = False

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def submit(self, rows: Sequence[Row]) -> Ticket:
        """Run a step; blocks with the GIL released. Raises ValueError on bad rows, before anything has happened.

        Raises GenerationFailed when torch fails inside the step; then every sequence is as it was before.
        """
        self._check(rows)
        self._ticket = None
        copies = self._pool.reserve([(row.sequence, len(row.tokens) + len(row.draft)) for row in rows])
        if copies is None:
            self._ticket = Ticket(rows, ran=False)
            return self._ticket
        self._kv.copy(copies)
        try:
            logits, first = self._run(rows)
        except (RuntimeError, MemoryError) as error:
            for row in rows:
                self._pool.settle(row.sequence, row.start)
            raise _failure(error) from error
        for row in rows:
            if not row.draft:
                self._pool.settle(row.sequence, row.start + len(row.tokens))
        self._ticket = Ticket(rows, True, logits, first)
        return self._ticket

    def collect(self, ticket: Ticket) -> list[Result]:
        """The results of the last step, in the order of its rows. Raises ValueError for any other step's ticket.

        Raises GenerationFailed when torch fails; then the sequences of rows with drafts should be freed.
        """
        self._check_open()
        if ticket is not self._ticket:
            raise ValueError("only the latest step can be collected, and only once")
        self._ticket = None
        if not ticket.ran:
            return [Result(error="no_room") for _ in ticket.rows]
        if ticket.logits is None:
            return [Result() for _ in ticket.rows]
        try:
            results = _results(ticket.rows, ticket.first, ticket.logits)
        except (RuntimeError, MemoryError) as error:
            raise _failure(error) from error
        for row, result in zip(ticket.rows, results, strict=True):
            if row.draft:
                self._pool.settle(row.sequence, row.start + len(row.tokens) + max(0, len(result.tokens) - 1))
        return results

    def fork(self, source: int, target: int, length: int) -> None:
        """Share the first `length` tokens: blocks are counted, nothing is copied. Raises ValueError."""
        self._check_length(source, length)
        self._check_sequence(target)
        if self._pool.lengths[target] or source == target:
            raise ValueError(f"sequence {target} is not empty")
        self._pool.fork(source, target, length)

    def truncate(self, sequence: int, length: int) -> None:
        """Drop the tail. Raises ValueError where `reusable` does not allow it."""
        self._check_length(sequence, length)
        self._pool.truncate(sequence, length)

    def free(self, sequence: int) -> None:
        self._check_sequence(sequence)
        self._pool.free(sequence)

    def reusable(self, sequence: int, length: int) -> int:
        """`length` (at most the sequence's own) where everything the next token attends to is still there, else 0."""
        self._check_sequence(sequence)
        if length < 0:
            raise ValueError(f"a length of {length} makes no sense")
        return self._pool.reusable(sequence, length)

    def park(self, sequence: int) -> ParkedSequence:
        """Copy the pages out."""
        self._check_sequence(sequence)
        forgotten = [group.forgotten(sequence) for group in self._pool.groups]
        return ParkedSequence(self, self._pool.lengths[sequence], forgotten, self._kv.read(self._pool, sequence))

    def unpark(self, parked: Parked, sequence: int) -> None:
        """Bring a copy back. Raises ValueError: not this runner's copy, sequence not empty, no room."""
        self._check_sequence(sequence)
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
        self._ticket = None
        self.__dict__.pop("_model", None)
        self.__dict__.pop("_kv", None)

    # -- inside

    def _run(self, rows: Sequence[Row]) -> tuple[Tensor | None, tuple[int, ...]]:
        """Logits of the rows that are sampled, drafts' behind each row's, and where each row's begin (-1: nowhere)."""
        starts = tuple(row.start for row in rows)
        counts = tuple(len(row.tokens) + len(row.draft) for row in rows)
        device = self._model.device
        steps = []
        for group in self._pool.groups:
            ragged = Ragged(starts, counts, table([group.tables[row.sequence] for row in rows], device))
            steps.append(Step(ragged, ragged.positions(device), ragged.slots(BLOCK)))
        tokens: list[int] = []
        wanted: list[int] = []
        first: list[int] = []
        for row in rows:
            tokens += row.tokens
            first.append(len(wanted) if row.sample is not None else -1)
            if row.sample is not None:
                wanted += range(len(tokens) - 1, len(tokens) + len(row.draft))
            tokens += row.draft
        with torch.inference_mode():
            asked = torch.tensor(wanted, dtype=torch.int64, device=device)
            logits = self._model(torch.tensor(tokens, device=device), self._kv, steps, asked)
        return logits, tuple(first)

    def _check(self, rows: Sequence[Row]) -> None:
        """Raise ValueError on rows that make no sense, before anything has happened."""
        self._check_open()
        total = outputs = 0
        seen: set[int] = set()
        for row in rows:
            self._check_sequence(row.sequence)
            length, count = self._pool.lengths[row.sequence], len(row.tokens) + len(row.draft)
            if not row.tokens:
                raise ValueError(f"sequence {row.sequence} has no tokens in this step")
            if row.sequence in seen:
                raise ValueError(f"sequence {row.sequence} appears twice in one step")
            if row.start != length:
                raise ValueError(f"sequence {row.sequence} is {length} tokens long, not {row.start}")
            if row.start + count > self._info.context:
                raise ValueError(f"{row.start + count} tokens exceed the context of {self._info.context}")
            if len(row.draft) > (self._info.draft_tokens if row.sample is not None else 0):
                raise ValueError(f"sequence {row.sequence} has a draft of {len(row.draft)} tokens: too many")
            for token in (*row.tokens, *row.draft):
                if not 0 <= token < self._vocabulary:
                    raise ValueError(f"token {token} is not one of the {self._vocabulary} in the vocabulary")
            seen.add(row.sequence)
            total += count
            outputs += 0 if row.sample is None else 1 + len(row.draft)
        if not 0 < total <= self._info.batch_tokens:
            raise ValueError(f"a step takes 1 to {self._info.batch_tokens} tokens, not {total}")
        if outputs > self._info.max_outputs:
            raise ValueError(f"a step draws up to {self._info.max_outputs} tokens, not {outputs}")

    def _check_sequence(self, sequence: int) -> None:
        self._check_open()
        if not 0 <= sequence < self._info.max_sequences:
            raise ValueError(f"there is no sequence {sequence}: they are numbered 0 to {self._info.max_sequences - 1}")

    def _check_length(self, sequence: int, length: int) -> None:
        self._check_sequence(sequence)
        whole = self._pool.lengths[sequence]
        if not 0 <= length <= whole:
            raise ValueError(f"sequence {sequence} is {whole} tokens long; {length} is out of range")

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the runner is closed")


def _failure(error: Exception) -> GenerationFailed:
    why = (str(error) or type(error).__name__).splitlines()[0]
    return GenerationFailed(
        f"torch failed in a step: {why}", hint="try again; if it happens again, the model may not fit this machine"
    )


def _results(rows: Sequence[Row], first: Sequence[int], logits: Tensor) -> list[Result]:
    """Draw for every row and its drafts; a row's answer ends at the first draft that did not come true."""
    drawn = _Drawn(logits)
    drawn.add([(row, index) for row, index in zip(rows, first, strict=True) if row.sample is not None])
    return [
        Result() if row.sample is None else drawn.result(row, index) for row, index in zip(rows, first, strict=True)
    ]


class _Drawn:
    """What was drawn from a step's logits, by their row."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.chosen: dict[int, tuple[int | None, float]] = {}
        self.probabilities: dict[int, Logprob] = {}

    def add(self, rows: Sequence[tuple[Row, int]]) -> None:
        """Draw for all at once: at each offset as if the drafts before it had come true, for else nobody will ask."""
        asked: list[tuple[int, Draw]] = []
        for row, index in rows:
            assert row.sample is not None
            for offset in range(len(row.draft) + 1 if not row.sample.mirostat else 1):
                asked.append((index + offset, _draw(row, offset, row.carry)))
        places = [place for place, _ in asked]
        with torch.inference_mode():
            self._choose(places, [draw for _, draw in asked])

    def result(self, row: Row, index: int) -> Result:
        assert row.sample is not None
        tokens: list[int] = []
        probabilities: list[Logprob] = []
        carry = row.carry
        for offset in range(len(row.draft) + 1):
            place = index + offset
            if place not in self.chosen:  # mirostat: what it remembers is known only now
                self._choose([place], [_draw(row, offset, carry)])
            token, carry = self.chosen[place]
            if token is None:
                return Result(error="nan")
            tokens.append(token)
            if row.sample.logprobs is not None:
                probabilities.append(self.probabilities[place])
            if offset < len(row.draft) and token != row.draft[offset]:
                break
        return Result(tuple(tokens), None, tuple(probabilities), carry)

    def _choose(self, places: Sequence[int], draws: Sequence[Draw]) -> None:
        logits = self.logits if list(places) == list(range(self.logits.shape[0])) else self.logits[list(places)]
        self.chosen.update(zip(places, choose(logits, draws), strict=True))
        asked = [
            (place, token, draw.spec.logprobs)
            for place, draw in zip(places, draws, strict=True)
            if draw.spec.logprobs is not None and (token := self.chosen[place][0]) is not None
        ]
        if asked:
            found, tokens, counts = zip(*asked, strict=True)
            told = log_probabilities(self.logits[list(found)], tokens, counts)
            self.probabilities.update(zip(found, told, strict=True))


def _draw(row: Row, offset: int, carry: float) -> Draw:
    assert row.sample is not None
    return Draw(row.sample, row.position + offset, row.history, row.draft[:offset], carry)
