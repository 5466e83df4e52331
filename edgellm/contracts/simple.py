"""For engines that are a function: tokens in, next token out. Everything else the contract asks for is here.

Derive from `SimpleEngine`, say which models it runs, and give `next_token`. Sequences are kept as lists of tokens, and
every step calls the function with all of them: right for remote or toy models, and a reference for real engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgellm.contracts.engine import Available, CostModel, ModelFile, Placement, Tokenizer, Unavailable
from edgellm.contracts.runner import Parked, Result, Row, RunnerInfo, SampleSpec, TokenRunner

NextToken = Callable[[Sequence[int], SampleSpec, int], int]  # (all tokens, how, position among the generated)


class ByteTokenizer:
    """Tokens are bytes; 256 ends an answer. No BOS, no control texts but the end's."""

    END = 256

    bos: int | None = None
    eos: int | None = END
    adds_bos = False
    end_of_generation = frozenset({END})
    special_texts: tuple[str, ...] = ("</s>",)
    vocabulary_size = END + 1
    chat_template: str | None = "{% for m in messages %}{{ m.content }}\n{% endfor %}"

    def encode(self, text: str, *, special: bool) -> list[int]:  # noqa: ARG002 - there are no control texts to find
        return list(text.encode("utf-8", "replace"))

    def fewest(self, text: str) -> int:
        return len(text)

    def token_text(self, token: int) -> str:
        return "</s>" if token == self.END else chr(token)

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == self.END else bytes([token])


class ParkedTokens:
    """A sequence outside the pool: its tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return 4 * len(self.tokens)


class SimpleRunner:
    """TokenRunner whose KV is the tokens themselves."""

    def __init__(self, engine: str, next_token: NextToken, placement: Placement) -> None:
        self._next_token = next_token
        self._info = RunnerInfo(
            engine=engine,
            context=placement.context,
            capacity=placement.capacity,
            max_sequences=placement.max_sequences,
            batch_tokens=placement.batch_tokens,
        )
        self._sequences: list[list[int]] = [[] for _ in range(placement.max_sequences)]

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def submit(self, rows: Sequence[Row]) -> list[Result]:
        return [self._run(row) for row in rows]

    def collect(self, ticket: list[Result]) -> list[Result]:
        return ticket

    def fork(self, source: int, target: int, length: int) -> None:
        self._sequences[target] = self._sequences[source][:length]

    def truncate(self, sequence: int, length: int) -> None:
        del self._sequences[sequence][length:]

    def free(self, sequence: int) -> None:
        self._sequences[sequence] = []

    def reusable(self, sequence: int, length: int) -> int:
        return min(length, len(self._sequences[sequence]))

    def park(self, sequence: int) -> Parked:
        return ParkedTokens(self._sequences[sequence])

    def unpark(self, parked: Parked, sequence: int) -> None:
        if not isinstance(parked, ParkedTokens) or self._sequences[sequence]:
            raise ValueError("this copy is not of this runner, or the sequence is not empty")
        self._sequences[sequence] = list(parked.tokens)

    def close(self) -> None:
        self._sequences = []

    def _run(self, row: Row) -> Result:
        tokens = self._sequences[row.sequence]
        if row.start != len(tokens):
            raise ValueError(f"sequence {row.sequence} is {len(tokens)} tokens long, not {row.start}")
        tokens.extend(row.tokens)
        return Result() if row.sample is None else Result((self._next_token(tokens, row.sample, row.position),))


class SimpleEngine:
    """An EnginePlugin around `next_token`. Give `name`, `supports` and `next_token`; replace what else differs."""

    name = "simple"
    version = ""  # of its own library, where it has one; else its distribution's is shown
    kv_types: tuple[str, ...] = ("none",)

    def next_token(self, tokens: Sequence[int], sample: SampleSpec, position: int) -> int:
        """The token that follows `tokens`; `ByteTokenizer.END` ends the answer."""
        raise NotImplementedError

    def supports(self, model: ModelFile) -> str | None:
        """None for the models it runs, else why not."""
        raise NotImplementedError

    def probe(self) -> Available | Unavailable:
        return Available(self.version)

    def cost_model(self, model: ModelFile, kv_type: str) -> CostModel:  # noqa: ARG002 - there is one type
        return CostModel(weights=model.size)

    def tokenizer(self, model: ModelFile) -> Tokenizer:  # noqa: ARG002 - one vocabulary for all
        return ByteTokenizer()

    def load(self, model: ModelFile, placement: Placement, progress: Callable[[float], None]) -> TokenRunner:  # noqa: ARG002
        progress(1.0)
        return SimpleRunner(self.name, self.next_token, placement)
