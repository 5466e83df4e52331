"""What every engine's sampler chain shares, whatever it computes with: which tokens are penalised, and by how much.

Plain numbers; the engine applies them to its logits. The order of the chain is in docs/sampling.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from edgellm.contracts.runner import SampleSpec

# fmt: off
SAMPLERS: Final = frozenset({  # fields of Sampling, and log probabilities: a chain that knows them all
    "temperature", "top_p", "top_k", "seed", "min_p", "typical_p", "logit_bias", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_last_n",
    "dry_breakers", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta", "logprobs",
})
# fmt: on
COLDEST: Final = 1e-6  # temperature: below this the division overflows; the result is argmax long before
LUCK: Final = 1  # the stream of random numbers that decides about XTC
STEEPEST: Final = 88.0  # ln of the largest factor of a DRY penalty: beyond, float32 overflows


def token_counts(spec: SampleSpec, history: Sequence[int], drafted: Sequence[int]) -> Counter[int]:
    """How often each token stood where the penalties for that look; empty where the spec has none.

    `history` then `drafted` are the tokens before.
    """
    if spec.repeat_last_n and (spec.repeat_penalty != 1 or spec.presence_penalty or spec.frequency_penalty):
        return Counter(_latest(history, drafted, spec.repeat_last_n))
    return Counter()


def repetitions(spec: SampleSpec, history: Sequence[int], drafted: Sequence[int]) -> dict[int, float]:
    """What DRY adds to the logits of tokens that would continue a repetition; empty where the spec has no DRY."""
    if not (spec.dry_last_n and spec.dry_multiplier):
        return {}
    recent = _latest(history, drafted, spec.dry_last_n)
    recent.reverse()
    return dry(recent, spec)


def dry(recent: list[int], spec: SampleSpec) -> dict[int, float]:
    """What DRY adds to the logits of tokens that would continue a repetition. `recent` begins with the newest token.

    Where the latest L tokens stood before, the token that followed them then is penalised by
    multiplier * base ** (L - allowed), from L = allowed on, for the longest such L. A repetition does not reach back
    over a breaker, and breakers themselves are never penalised.
    """
    allowed = spec.dry_allowed_length
    since = _count_until(recent, spec.dry_breakers)
    if since < allowed:
        return {}
    longest: dict[int, int] = {}
    for start, length in _repeats(recent):
        length = min(length, since)
        followed = recent[start - 1]
        if length >= allowed and length > longest.get(followed, 0):
            longest[followed] = length
    steepness = math.log(spec.dry_base)
    most = STEEPEST / steepness if steepness > 0 else math.inf
    return {
        token: -spec.dry_multiplier * spec.dry_base ** min(length - allowed, most)
        for token, length in longest.items()
        if token not in spec.dry_breakers
    }


def _repeats(recent: list[int]) -> Iterable[tuple[int, int]]:
    """Each later start at which `recent` begins anew, and for how many tokens it goes on.

    The Z-algorithm (Gusfield, "Algorithms on Strings, Trees and Sequences", 1997), at the places only where the first
    token stands, which are found at the speed of C: linear whatever the text.
    """
    size = len(recent)
    matches: dict[int, int] = {}
    left = right = start = 0  # recent[left:right] equals the beginning, and no known match reaches further right
    first = recent[0] if recent else 0
    while True:
        try:
            start = recent.index(first, start + 1)
        except ValueError:
            return
        length = min(matches[start - left], right - start) if start < right else 1
        if start + length >= right:
            while start + length < size and recent[length] == recent[start + length]:
                length += 1
            left, right = start, start + length
        matches[start] = length
        yield start, length


def _count_until(tokens: Iterable[int], breakers: frozenset[int]) -> int:
    """How many tokens come before the first breaker."""
    count = 0
    for token in tokens:
        if token in breakers:
            break
        count += 1
    return count


def _latest(history: Sequence[int], drafted: Sequence[int], count: int) -> list[int]:
    """The last `count` tokens of `history` then `drafted`; all of them when negative."""
    if count < 0:
        return [*history, *drafted]
    older = count - len(drafted)
    return [*history[-older:], *drafted] if older > 0 else list(drafted[-count:])
