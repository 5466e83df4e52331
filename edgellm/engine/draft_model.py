"""A smaller model of the same vocabulary that guesses for a larger one (Leviathan et al., arXiv 2211.17192).

It draws with the larger model's sampler and random numbers, so that it guesses not what is likeliest but what that draw
will give where both models agree.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence

from msgspec.structs import replace

from edgellm.contracts.engine import Tokenizer
from edgellm.contracts.runner import Row, TokenRunner
from edgellm.engine.job import Job
from edgellm.engine.prefix import common_prefix
from edgellm.errors import LoadFailed

CATCH_UP = 256  # tokens of a text that it reads per step of the large model: others wait meanwhile
_WEIGHT = 0.2  # of the newest measurement


def check_vocabulary(model: str, own: Tokenizer, draft: Tokenizer) -> None:
    """Raises LoadFailed where a token of one model is not the same token of the other."""
    size = own.vocabulary_size
    same = size == draft.vocabulary_size and own.eos == draft.eos
    if same and all(own.token_text(token) == draft.token_text(token) for token in range(0, size, max(1, size // 500))):
        return
    raise LoadFailed(
        f"the draft model has another vocabulary than {model}: it cannot guess for it",
        hint="pick a smaller model of the same family, or leave the draft out",
    )


class DraftModel:
    """The small model's sequences, one for each text it guesses for; the least recently used gives way."""

    def __init__(self, runner: TokenRunner) -> None:
        self._runner = runner
        self._held: OrderedDict[Job, tuple[int, list[int]]] = OrderedDict()  # sequence and what it holds
        self._free = list(range(runner.info.max_sequences))
        self.token_s = 0.0  # what a guessed token takes; 0 before anything was measured

    def propose(self, job: Job, most: int) -> list[int]:
        """Up to `most` tokens that may follow; none while it still reads the text, or where it has no room."""
        text = job.tokens
        if most <= 0 or len(text) + most > self._runner.info.context:
            return []
        sequence, held = self._sequence(job)
        if not self._caught_up(sequence, held, text):
            return []
        spec = replace(job.sample, logprobs=None)
        guess: list[int] = []
        began = time.monotonic()
        for offset in range(most):
            history = [*text, *guess] if spec.looks_back else ()
            row = Row(sequence, len(held), [(*text, *guess)[-1]], spec, job.generated + offset, (), history, job.carry)
            token = self._run(row, held)
            if token is None:
                break
            guess.append(token)
        if guess:
            seconds = (time.monotonic() - began) / len(guess)
            self.token_s = seconds if not self.token_s else self.token_s + _WEIGHT * (seconds - self.token_s)
        return guess

    def close(self) -> None:
        self._runner.close()

    def _sequence(self, job: Job) -> tuple[int, list[int]]:
        if job in self._held:
            self._held.move_to_end(job)
            return self._held[job]
        if not self._free:
            self._forget(next(iter(self._held)))
        self._held[job] = (self._free.pop(), [])
        return self._held[job]

    def _forget(self, job: Job) -> None:
        sequence, _ = self._held.pop(job)
        self._runner.free(sequence)
        self._free.append(sequence)

    def _caught_up(self, sequence: int, held: list[int], text: Sequence[int]) -> bool:
        """Bring the sequence to all of `text` but its last token, as far as one step allows."""
        same = self._runner.reusable(sequence, min(common_prefix(held, text), len(text) - 1))
        if same < len(held):
            self._runner.truncate(sequence, same)
            del held[same:]
        missing = text[len(held) : len(text) - 1]
        chunk = missing[: min(CATCH_UP, self._runner.info.batch_tokens)]
        if chunk:
            self._run(Row(sequence, len(held), chunk), held)
        return len(held) == len(text) - 1

    def _run(self, row: Row, held: list[int]) -> int | None:
        (result,) = self._runner.collect(self._runner.submit([row]))
        if result.error is not None:
            for job in list(self._held):
                self._forget(job)
            held.clear()
            return None
        held.extend(row.tokens)
        return result.tokens[0] if result.tokens else None
