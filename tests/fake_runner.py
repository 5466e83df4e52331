"""An engine in memory, for tests of everything above engines: deterministic, instant, strict about its contract.

`FakePlugin` loads a `FakeRunner` and a `FakeTokenizer`. The "model" reads bytes and writes letters: what follows a
sequence is a hash of the tokens in it, so a KV mistake anywhere (a token lost, doubled, out of order, of another
sequence) changes the text. It can forget like a sliding window, remember like a recurrent state, end when told, run
out of room, fail and break on demand, and have two steps in flight.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn

import msgspec
from reference_chain import SAMPLERS, reference_choice, reference_logprobs

from edgellm.contracts.checks import check_rows
from edgellm.contracts.engine import Available, CostModel, KVCost, ModelFile, Placement, Unavailable
from edgellm.contracts.runner import PREVIOUS, Logprob, Parked, Result, Row, RunnerInfo
from edgellm.errors import GenerationFailed, LoadFailed
from edgellm.formats.whole_tokens import WholeTokens

BYTES = 256
BOS, EOS, START, END = range(BYTES, BYTES + 4)
SPECIAL = {BOS: "<s>", EOS: "</s>", START: "<|im_start|>", END: "<|im_end|>"}
WHOLE = WholeTokens((token, name.encode()) for token, name in SPECIAL.items())
VOCABULARY = BYTES + len(SPECIAL)
LETTERS = b"abcdefghijklmnopqrstuvwxyz      "
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLACEMENT = Placement(
    context=256, capacity=512, max_sequences=4, batch_tokens=64, threads=1, threads_batch=1, gpu_layers=0
)


class FakeBehaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What the fake model is like."""

    window: int = 0  # only the last so many tokens matter, and older ones are forgotten soon; 0: all matter
    recurrent: bool = False  # nothing but the end of a sequence can be shared or cut
    depth: int = 1  # steps in flight
    tile: int = 1  # its `info.prefill_tile`
    keeps_order: bool = False  # its sequences must be laid out anew when others leave
    end_at: int | None = None  # the sequence length at which the model wants to end its answer
    on_step: Callable[[Sequence[Row]], None] | None = None  # called in every submit: sleep, move a clock, fail


class _Cell:
    """The KV of one token, shared by `users` sequences. `state` is the hash of everything up to it."""

    __slots__ = ("state", "token", "users")

    def __init__(self, token: int, state: int) -> None:
        self.token = token
        self.state = state
        self.users = 1


class _Sequence:
    """Cells, of which the first `forgotten` are gone from windowed layers."""

    __slots__ = ("cells", "forgotten")

    def __init__(self) -> None:
        self.cells: list[_Cell] = []
        self.forgotten = 0


class _Ticket:
    """A step in flight: what will be told of each row, and whether there was room."""

    def __init__(self, rows: Sequence[Row], results: list[Result], refused: bool = False) -> None:
        self.rows = rows
        self.results = results
        self.refused = refused

    def of(self, sequence: int) -> Result | None:
        """What its row drew, where that is certain: without a draft."""
        found = [(row, result) for row, result in zip(self.rows, self.results, strict=True) if row.sequence == sequence]
        return found[0][1] if found and found[0][0].sample is not None and not found[0][0].draft else None


class FakeParked(msgspec.Struct, frozen=True):
    """A copy of a sequence."""

    cells: tuple[tuple[int, int], ...]
    forgotten: int

    @property
    def length(self) -> int:
        return len(self.cells)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.cells)


class FakeRunner:
    """Records every step in `steps`; `used` counts cells, shared ones once. A step runs whole when it is submitted."""

    def __init__(self, placement: Placement = PLACEMENT, behaviour: FakeBehaviour | None = None) -> None:
        self._behaviour = behaviour or FakeBehaviour()
        self._info = RunnerInfo(
            engine="fake",
            context=placement.context,
            capacity=placement.capacity,
            max_sequences=placement.max_sequences,
            batch_tokens=placement.batch_tokens,
            pipeline_depth=self._behaviour.depth,
            prefill_tile=self._behaviour.tile,
            max_outputs=placement.max_sequences + 8,
            exact_cells=2**31,
            keeps_order=self._behaviour.keeps_order,
            draft_tokens=0 if self._behaviour.recurrent else 4,
            samplers=SAMPLERS,
        )
        self._sequences = [_Sequence() for _ in range(placement.max_sequences)]
        self._flying: deque[_Ticket] = deque()
        self._closed = False
        self.steps: list[tuple[Row, ...]] = []
        self.used = 0
        self.refusals = 0  # so many of the next steps find no room
        self.broken: set[int] = set()  # sequences whose next logits are not finite
        self.failing: Literal["", "submit", "collect"] = ""  # the next such call fails, when half of its step has run

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def refused(self) -> bool:
        """Whether a step in flight found no room."""
        return any(ticket.refused for ticket in self._flying)

    def submit(self, rows: Sequence[Row]) -> object:
        if len(self._flying) >= self._info.pipeline_depth:
            raise ValueError(f"{len(self._flying)} steps are in flight: collect the first")
        refused = self.refused
        if not refused:
            self._check(rows)
        if self._behaviour.on_step is not None:
            self._behaviour.on_step(rows)
        self.steps.append(tuple(rows))
        total = sum(len(row.tokens) + len(row.draft) for row in rows)
        if self.failing == "submit":
            for row in rows[: len(rows) // 2]:
                self._run(row)
            self._fail()
        if refused or self.refusals or self.used + total > self._info.capacity:
            self.refusals = max(0, self.refusals - 1)
            self._flying.append(_Ticket(rows, [Result(error="no_room") for _ in rows], refused=True))
        else:
            self._flying.append(_Ticket(rows, [self._run(row) for row in rows]))
        return self._flying[-1]

    def collect(self, ticket: object) -> list[Result]:
        if not self._flying or ticket is not self._flying[0]:
            raise ValueError("steps are collected in the order of their submission, and once")
        results = self._flying.popleft().results
        if self.failing == "collect":
            self._fail()
        return results

    def fork(self, source: int, target: int, length: int) -> None:
        self._check_length(source, length)
        if source == target or self._settled(target).cells:
            raise ValueError(f"sequence {target} is not empty")
        if self.reusable(source, length) < length:
            raise ValueError(f"sequence {source} cannot be shared at {length}")
        shared = self._sequences[source].cells[:length]
        for cell in shared:
            cell.users += 1
        self._sequences[target].cells = shared
        self._sequences[target].forgotten = self._sequences[source].forgotten

    def truncate(self, sequence: int, length: int) -> None:
        self._check_length(sequence, length)
        if self.reusable(sequence, length) < length:
            raise ValueError(f"sequence {sequence} cannot be cut at {length}")
        cells = self._sequences[sequence].cells
        for cell in cells[length:]:
            cell.users -= 1
            self.used -= cell.users == 0
        del cells[length:]

    def free(self, sequence: int) -> None:
        self.truncate(sequence, 0)
        self._sequences[sequence].forgotten = 0

    def reusable(self, sequence: int, length: int) -> int:
        held = self._settled(sequence)
        if length < 0:
            raise ValueError(f"a length of {length} makes no sense")
        length = min(length, len(held.cells))
        if length in (0, len(held.cells)):
            return length
        if self._behaviour.recurrent:
            return 0
        return length if held.forgotten <= max(0, length - self._behaviour.window + 1) else 0

    def park(self, sequence: int) -> FakeParked:
        held = self._settled(sequence)
        return FakeParked(tuple((c.token, c.state) for c in held.cells), held.forgotten)

    def unpark(self, parked: Parked, sequence: int) -> None:
        if not isinstance(parked, FakeParked):
            raise ValueError("this copy is not of this runner")
        held = self._settled(sequence)
        if held.cells:
            raise ValueError(f"sequence {sequence} is not empty")
        if self.used + parked.length > self._info.capacity:
            raise ValueError("no room to unpark")
        held.cells = [_Cell(token, state) for token, state in parked.cells]
        held.forgotten = parked.forgotten
        self.used += parked.length

    def close(self) -> None:
        self._closed = True

    # -- the model

    def _run(self, row: Row) -> Result:
        """Token by token, so that a draft is exact; the first guess that is wrong is never computed."""
        held = self._sequences[row.sequence]
        taken = self._flying[-1].of(row.sequence) if row.tokens[0] == PREVIOUS else None
        self._append(held, row.tokens if taken is None else taken.tokens or [0])
        if row.sample is None:
            return Result()
        if row.sequence in self.broken or (taken is not None and taken.error):
            self.broken.discard(row.sequence)
            return Result(error="nan")
        drawn: list[int] = []
        logprobs: list[Logprob] = []
        carry = row.carry
        for guess in (*row.draft, None):
            logits = self._logits(held)
            history = [*row.history, *drawn]
            token, carry = reference_choice(logits, row.sample, row.position + len(drawn), history, carry)
            drawn.append(token)
            if row.sample.logprobs is not None:
                logprobs.append(reference_logprobs(logits, drawn[-1], row.sample.logprobs))
            if guess != drawn[-1]:
                break
            self._append(held, [guess])
        return Result(tuple(drawn), None, tuple(logprobs), carry)

    def _fail(self) -> NoReturn:
        self.failing = ""
        raise GenerationFailed("half of it ran")

    def _append(self, held: _Sequence, tokens: Sequence[int]) -> None:
        for token in tokens:
            state = held.cells[-1].state if held.cells else 0
            held.cells.append(_Cell(token, hash((state, token))))
        self.used += len(tokens)
        window = self._behaviour.window
        if window and len(held.cells) - held.forgotten > 2 * window:
            held.forgotten = len(held.cells) - window

    def _logits(self, held: _Sequence) -> list[float]:
        if len(held.cells) == self._behaviour.end_at:
            return [0.0 if token == END else -math.inf for token in range(VOCABULARY)]
        window = self._behaviour.window
        if window:
            # What has been forgotten, and is yet needed, reads as nothing: the text goes wrong.
            first = max(0, len(held.cells) - window)
            seen = [c.token if i >= held.forgotten else -1 for i, c in enumerate(held.cells[first:], first)]
            state = hash(tuple(seen))
        else:
            state = held.cells[-1].state
        return logits_of(state)

    # -- the contract's preconditions

    def _check(self, rows: Sequence[Row]) -> None:
        if self._closed:
            raise ValueError("the runner is closed")
        guessed = {row.sequence for step in self._flying for row in step.rows if row.draft}
        if any(row.sequence in guessed for row in rows):
            raise ValueError("a sequence has a draft in flight")
        check_rows(rows, self._info, [len(sequence.cells) for sequence in self._sequences])
        for row in rows:
            taken = list(row.tokens) == [PREVIOUS] and self._flying and self._flying[-1].of(row.sequence)
            if not taken and not all(0 <= token < VOCABULARY for token in (*row.tokens, *row.draft)):
                raise ValueError(f"sequence {row.sequence} has a token that is not in the vocabulary")

    def _check_length(self, sequence: int, length: int) -> None:
        if not 0 <= length <= len(self._settled(sequence).cells):
            raise ValueError(f"length {length} is out of range")

    def _settled(self, sequence: int) -> _Sequence:
        """A sequence that no step in flight works on."""
        if any(row.sequence == sequence for ticket in self._flying for row in ticket.rows):
            raise ValueError(f"a step in flight works on sequence {sequence}")
        return self._sequence(sequence)

    def _sequence(self, sequence: int) -> _Sequence:
        if self._closed:
            raise ValueError("the runner is closed")
        if not 0 <= sequence < len(self._sequences):
            raise ValueError(f"there is no sequence {sequence}")
        return self._sequences[sequence]


def logits_of(state: int) -> list[float]:
    """The fake's logits: letters likely, everything else almost not; the favourite is what temperature 0 takes."""
    numbers = random.Random(state)
    logits = [-20.0] * VOCABULARY
    for letter in sorted(set(LETTERS)):
        logits[letter] = numbers.gauss(0, 1)
    logits[LETTERS[state % len(LETTERS)]] = 4.0
    return logits


class FakeTokenizer:
    """One token per byte, and a few control tokens."""

    bos = BOS
    eos = EOS
    adds_bos = True
    end_of_generation = frozenset({EOS, END})
    special_texts = tuple(SPECIAL.values())
    vocabulary_size = VOCABULARY
    chat_template: str | None = TEMPLATE

    def encode(self, text: str, *, special: bool) -> list[int]:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        ids: list[int] = []
        for part in WHOLE.cut(text) if special else (text,):
            ids += [part] if isinstance(part, int) else part.encode()
        return ids

    def fewest(self, text: str) -> int:
        return len(text) // max(map(len, self.special_texts))

    def token_text(self, token: int) -> str:
        return SPECIAL.get(token) or self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < VOCABULARY:
            raise ValueError(f"token {token} is not in the vocabulary")
        return bytes([token]) if token < BYTES else b""


class FakePlugin:
    """Loads any file that starts like a GGUF; remembers its runners."""

    name = "fake"
    kv_types: tuple[str, ...] = ("f16", "q8_0")

    def __init__(self, behaviour: FakeBehaviour | None = None, state: Available | Unavailable | None = None) -> None:
        self._behaviour = behaviour
        self._state = state or Available("1", "in memory")
        self.runners: deque[FakeRunner] = deque(maxlen=16)

    def probe(self) -> Available | Unavailable:
        return self._state

    def supports(self, model: ModelFile) -> str | None:
        return None if model.tensors else "the file holds no weights"

    def cost_model(self, model: ModelFile, kv_type: str) -> CostModel:
        weights = sum(tensor.nbytes for tensor in model.tensors)
        per_token = 64 if kv_type == "f16" else 34
        return CostModel(weights=weights, kv=(KVCost("full", 1, per_token=per_token),), process=1 << 20)

    def tokenizer(self, model: ModelFile) -> FakeTokenizer:
        return FakeTokenizer()

    def load(self, model: ModelFile, placement: Placement, progress: Callable[[float], None]) -> FakeRunner:
        placement.check("the fake engine", self.kv_types)
        if not model.path.exists() or model.path.read_bytes()[:4] != b"GGUF":
            raise LoadFailed(f"the fake engine cannot load {model.path.name}: not a GGUF file", hint="use another")
        progress(0.5)
        progress(1.0)
        self.runners.append(FakeRunner(placement, self._behaviour))
        return self.runners[-1]
