"""TokenRunner over one llama.cpp context with a unified KV pool.

llama.cpp aborts the process on input it does not expect; so everything is checked here first, and a ledger of sequence
lengths is kept on this side.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edgellm.contracts.chain import SAMPLERS
from edgellm.contracts.checks import check_length, check_rows, check_sequence
from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import Logprob, Parked, Result, Row, RunnerInfo
from edgellm.errors import GenerationFailed
from edgellm_llamacpp.batch import Batch
from edgellm_llamacpp.costs import MICRO_BATCH
from edgellm_llamacpp.native import DRAFT_TOKENS, Context, Library, Model, decode_threads, max_outputs
from edgellm_llamacpp.neighbours import ThreadCount, kind
from edgellm_llamacpp.parking import ParkedSequence, read_state, write_state
from edgellm_llamacpp.sampling import choose, log_probabilities

PREFILL_TILE = 64  # rows of a tile of llama.cpp's flash attention on CPUs; fewer rows go one by one
_DONE, _NO_ROOM = 0, 1  # what llama_decode returns; everything else is a failure


class Ticket(msgspec.Struct, frozen=True):
    """A step that was submitted: its rows, the batch index of each row's last token, whether there was room."""

    rows: Sequence[Row]
    last: list[int]
    ran: bool


class LlamaCppRunner:
    """One loaded model. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        lib: Library,
        model: Model,
        context: Context,
        placement: Placement,
        exact_cells: int = 0,
        *,
        tiled: bool = True,
    ) -> None:
        """`tiled`: attention of several rows costs less in tiles of them."""
        api = lib.api
        self._api, self._log = api, lib.log
        self._context = context  # holds the model, until it is closed
        self._vocabulary: int = api.llama_vocab_n_tokens(model.vocabulary)
        # Windows and recurrent states forget; what is left is checked before any sequence is shared or cut.
        self._window = int(api.llama_model_n_swa(model.pointer))
        self._recurrent = bool(api.llama_model_is_recurrent(model.pointer) or api.llama_model_is_hybrid(model.pointer))
        self._info = RunnerInfo(
            engine="llamacpp",
            context=placement.context,
            capacity=int(api.llama_n_ctx(context.pointer)),  # what was asked for, rounded up to llama.cpp's step
            max_sequences=placement.max_sequences,
            prefill_tile=PREFILL_TILE if tiled and not placement.exact else 1,
            exact_cells=exact_cells,
            keeps_order=placement.exact,
            batch_tokens=min(placement.batch_tokens, int(api.llama_n_batch(context.pointer))),
            max_outputs=max_outputs(placement),
            draft_tokens=0 if self._recurrent else DRAFT_TOKENS,
            samplers=SAMPLERS,
        )
        self._lengths = [0] * placement.max_sequences
        self._trusted = [0] * placement.max_sequences  # windowed positions below this may have holes
        self._batch = Batch(api, self._info.batch_tokens)
        self._ticket: Ticket | None = None
        self._threads = self._threads_now = (decode_threads(lib, placement), placement.threads_batch)
        self._thread_count = ThreadCount(self._threads[0] if placement.gpu_layers == 0 else 1)
        # The binding's own prototype wraps each row's pointer in an object; an address is all that is needed.
        prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
        self._logits_at = prototype(ctypes.cast(api.llama_get_logits_ith, ctypes.c_void_p).value or 0)
        self._views: dict[int, npt.NDArray[np.float32]] = {}
        self._closed = False

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def submit(self, rows: Sequence[Row]) -> Ticket:
        """Run a step; blocks with the GIL released. Raises ValueError on bad rows, before anything has happened.

        Raises GenerationFailed when llama.cpp fails inside the step: then some rows may have run and others not, and
        the sequences of all of them should be freed.
        """
        self._check(rows)
        last = self._batch.fill(rows, self._vocabulary)
        self._ticket = None  # whatever was not collected is overwritten now
        code = self._run(rows)
        if code == _DONE:
            for row in rows:
                self._lengths[row.sequence] = row.start + len(row.tokens) + len(row.draft)
        elif code == _NO_ROOM:
            self._distrust_windows()
        else:
            self._fail(rows, code)
        self._ticket = Ticket(rows, last, code == _DONE)
        return self._ticket

    def collect(self, ticket: Ticket) -> list[Result]:
        """The results of the last step, in the order of its rows. Raises ValueError for any other step's ticket."""
        if ticket is not self._ticket:
            raise ValueError("only the latest step can be collected, and only once")
        self._ticket = None
        if not ticket.ran:
            return [Result(error="no_room") for _ in ticket.rows]
        return [self._result(row, index) for row, index in zip(ticket.rows, ticket.last, strict=True)]

    def fork(self, source: int, target: int, length: int) -> None:
        """Share the first `length` tokens: cells are marked, nothing is copied. Raises ValueError."""
        self._check_length(source, length)
        self._check_sequence(target)
        if self._lengths[target] or source == target:
            raise ValueError(f"sequence {target} is not empty")
        if self.reusable(source, length) < length:
            raise ValueError(f"sequence {source} no longer holds all that position {length} needs")
        if length == 0:
            return
        self._api.llama_memory_seq_cp(self._context.memory, source, target, 0, length)
        self._lengths[target] = length
        self._trusted[target] = self._trusted[source]

    def truncate(self, sequence: int, length: int) -> None:
        """Drop the tail. Raises ValueError where `reusable` does not allow it."""
        self._check_length(sequence, length)
        if length == self._lengths[sequence]:
            return
        if length == 0:
            self.free(sequence)
            return
        if self.reusable(sequence, length) < length:
            raise ValueError(f"sequence {sequence} no longer holds all that position {length} needs")
        if not self._api.llama_memory_seq_rm(self._context.memory, sequence, length, -1):
            raise GenerationFailed(
                f"llama.cpp cannot cut sequence {sequence} at {length}",
                hint="this model's memory must start over",
            )
        self._lengths[sequence] = length

    def free(self, sequence: int) -> None:
        self._check_sequence(sequence)
        if self._lengths[sequence]:
            self._api.llama_memory_seq_rm(self._context.memory, sequence, -1, -1)
        self._lengths[sequence] = self._trusted[sequence] = 0

    def reusable(self, sequence: int, length: int) -> int:
        """`length` (at most the sequence's own) where everything the next token attends to is still there, else 0.

        A token at position p of a windowed layer sees p - window + 1 and up. What a window needs only shrinks as the
        sequence grows, so there is nothing between all and nothing. The end itself is always exact.
        """
        self._check_sequence(sequence)
        whole = self._lengths[sequence]
        length = min(length, whole)
        if length < 0:
            raise ValueError(f"a length of {length} makes no sense")
        if length in (0, whole):
            return length
        if self._recurrent:
            return 0
        if not self._window:
            return length
        lowest = self._api.llama_memory_seq_pos_min(self._context.memory, sequence)
        lowest = max(lowest, self._trusted[sequence])
        return length if lowest <= max(0, length - self._window + 1) else 0

    def park(self, sequence: int) -> ParkedSequence:
        """Copy the KV out. Raises GenerationFailed when llama.cpp refuses."""
        self._check_sequence(sequence)
        state = read_state(self._api, self._context.pointer, sequence)
        if state is None:
            raise GenerationFailed(f"llama.cpp could not copy sequence {sequence} out", hint=self._log.problem())
        return ParkedSequence(self, self._lengths[sequence], self._trusted[sequence], state)

    def unpark(self, parked: Parked, sequence: int) -> None:
        """Bring a copy back. Raises ValueError: not this runner's copy, sequence not empty, no room."""
        self._check_sequence(sequence)
        if not isinstance(parked, ParkedSequence) or parked.owner is not self:
            raise ValueError("this copy is not of this runner")
        if self._lengths[sequence]:
            raise ValueError(f"sequence {sequence} is not empty")
        if not write_state(self._api, self._context.pointer, parked.state, sequence):
            raise ValueError(f"no room to bring {parked.length} tokens back")
        self._lengths[sequence] = parked.length
        self._trusted[sequence] = parked.trusted

    def close(self) -> None:
        """Free the context, and the model once its tokenizer is gone too. A second call does nothing."""
        self._closed = True
        self._ticket = None
        self._views.clear()
        self._context.close()

    # -- inside

    def _run(self, rows: Sequence[Row]) -> int:
        """Run the batch; a decode step with as many threads as do best beside all else on the machine."""
        decodes = all(row.sample is not None and len(row.tokens) == 1 for row in rows)
        self._use_threads(self._thread_count.count if decodes else self._thread_count.most)
        began = time.perf_counter()  # the other clock stands still for 16 ms at a time on Windows
        code = int(self._api.llama_decode(self._context.pointer, self._batch.struct))
        now = time.perf_counter()
        if decodes and code == _DONE:
            self._thread_count.took(kind(self._batch.struct.n_tokens, sum(self._lengths)), now - began, now)
        return code

    def _use_threads(self, count: int) -> None:
        """For the next step. llama.cpp has a number for steps of one token and one for those of several."""
        single, several = self._threads
        if count < self._thread_count.most:
            single, several = min(count, single), min(count, several)
        if (single, several) != self._threads_now:
            self._api.llama_set_n_threads(self._context.pointer, single, several)
            self._threads_now = single, several

    def _result(self, row: Row, index: int) -> Result:
        """Draw, and go on while the draft says the same; what was computed beyond is dropped."""
        if row.sample is None:
            return Result()
        tokens: list[int] = []
        logprobs: list[Logprob] = []
        carry = row.carry
        for offset in range(len(row.draft) + 1):
            logits = self._logits(index + offset)
            token, carry = choose(logits, row.sample, row.position + offset, row.history, tokens, carry)
            if token is None:
                return Result(error="nan")
            tokens.append(token)
            if row.sample.logprobs is not None:
                logprobs.append(log_probabilities(logits, token, row.sample.logprobs))
            if offset < len(row.draft) and token != row.draft[offset]:
                break
        self._drop_rejected(row, len(tokens) - 1)
        return Result(tuple(tokens), None, tuple(logprobs), carry)

    def _drop_rejected(self, row: Row, accepted: int) -> None:
        """What follows the last draft that came true. A window cannot have moved past it: the step began before."""
        length = row.start + len(row.tokens) + accepted
        if length < self._lengths[row.sequence]:
            if not self._api.llama_memory_seq_rm(self._context.memory, row.sequence, length, -1):
                raise GenerationFailed(f"llama.cpp cannot cut sequence {row.sequence} at {length}")
            self._lengths[row.sequence] = length

    def _logits(self, index: int) -> npt.NDArray[np.float32]:
        """The row of logits in llama.cpp's own buffer, shape (vocabulary,); valid until the next step."""
        address = self._logits_at(self._context.pointer, index)
        if not address:
            raise GenerationFailed("llama.cpp returned no logits", hint=self._log.problem())
        view = self._views.get(address)
        if view is None:
            buffer = (ctypes.c_float * self._vocabulary).from_address(address)
            view = self._views[address] = np.ctypeslib.as_array(buffer)
        return view

    def _check(self, rows: Sequence[Row]) -> None:
        """Raise ValueError on what llama.cpp would abort on, or silently compute nonsense from."""
        self._check_open()
        check_rows(rows, self._info, self._lengths)
        total = 0
        for row in rows if self._window else ():
            total += len(row.tokens) + len(row.draft)
            if row.draft and total > MICRO_BATCH:
                raise ValueError("rows with drafts come first: later micro-batches may forget what a cut needs")

    def _check_sequence(self, sequence: int) -> None:
        self._check_open()
        check_sequence(sequence, self._info)

    def _check_length(self, sequence: int, length: int) -> None:
        self._check_sequence(sequence)
        check_length(length, sequence, self._lengths)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the runner is closed")

    def _distrust_windows(self) -> None:
        """A search for room that fails may leave holes in windowed layers, below what each sequence still needs."""
        if self._window:
            for sequence, length in enumerate(self._lengths):
                self._trusted[sequence] = max(self._trusted[sequence], length - self._window + 1)

    def _fail(self, rows: Sequence[Row], code: int) -> None:
        """Micro-batches that finished before the failure stay: ask llama.cpp what each sequence now holds."""
        for row in rows:
            highest = self._api.llama_memory_seq_pos_max(self._context.memory, row.sequence)
            self._lengths[row.sequence] = highest + 1
        self._distrust_windows()
        raise GenerationFailed(
            f"llama.cpp failed in a step (code {code}): {self._log.problem() or 'it does not say why'}",
            hint="try again; if it happens again, the model may not fit this machine",
        )
