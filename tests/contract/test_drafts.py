"""What every TokenRunner promises of drafts: the tokens are those that would have come without, and so is the state."""

from __future__ import annotations

import pytest
from contract.driving import GREEDY, WARM, append, prompt, step
from contract.engines import Engine
from msgspec.structs import replace

from edgellm.contracts.engine import Row, SampleSpec, TokenRunner

COUNT = 12
SPECS = {
    "greedy": GREEDY,
    "warm": WARM,
    "penalties": replace(WARM, repeat_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3, repeat_last_n=20),
    "dry": replace(WARM, temperature=0.5, dry_multiplier=0.8, dry_allowed_length=1),
    "mirostat": replace(WARM, mirostat=2, mirostat_tau=3.0, logprobs=1),
    "xtc": replace(WARM, xtc_probability=0.5, xtc_threshold=0.02, typical_p=0.95, min_p=0.01),
}


class Driver:
    """One sequence, token by token or with drafts."""

    def __init__(self, runner: TokenRunner, sequence: int, ids: list[int], spec: SampleSpec) -> None:
        self.runner, self.sequence, self.spec = runner, sequence, spec
        self.tokens = list(ids)
        self.prompt = len(ids)
        self.carry = 0.0
        self.steps = 0
        append(runner, sequence, 0, ids[:-1])

    @property
    def drawn(self) -> list[int]:
        return self.tokens[self.prompt :]

    def step(self, draft: list[int]) -> None:
        start = len(self.tokens) - 1
        history = self.tokens if self.spec.looks_back else ()
        row = Row(
            self.sequence, start, self.tokens[-1:], self.spec, start + 1 - self.prompt, draft, history, self.carry
        )
        (result,) = step(self.runner, row)
        assert result.error is None
        assert 1 <= len(result.tokens) <= len(draft) + 1
        assert list(result.tokens[:-1]) == draft[: len(result.tokens) - 1]
        assert len(result.logprobs) == (0 if self.spec.logprobs is None else len(result.tokens))
        self.carry = result.carry
        self.tokens += result.tokens
        self.steps += 1


@pytest.mark.parametrize("name", SPECS)
def test_drafts_change_nothing(engine: Engine, runner: TokenRunner, name: str) -> None:
    """True drafts save steps, wrong ones cost nothing but their rows; tokens and carry are those of single steps."""
    if not engine.exact:
        pytest.skip("its kernels round differently for different numbers of rows")
    longest = runner.info.draft_tokens
    if not longest:
        pytest.skip("it verifies no drafts")
    spec = SPECS[name]
    unknown = set(spec.__struct_fields__) - {"choice"} - runner.info.samplers
    if any(getattr(spec, field) != getattr(SampleSpec(), field) for field in unknown):
        pytest.skip("it has no such sampler")
    ids = prompt(engine.tokenizer)
    plain = Driver(runner, 0, ids, spec)
    for _ in range(COUNT):
        plain.step([])
    guided = Driver(runner, 1, ids, spec)
    while len(guided.drawn) < COUNT:
        ahead = plain.drawn[len(guided.drawn) :][: min(4, longest, COUNT - 1 - len(guided.drawn))]
        if guided.steps % 2 and len(ahead) > 1:
            ahead[-1] = (ahead[-1] + 1) % engine.tokenizer.vocabulary_size  # the last guess is wrong
        guided.step(ahead)
    assert guided.drawn == plain.drawn
    assert guided.carry == plain.carry
    assert guided.steps < plain.steps
