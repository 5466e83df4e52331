"""The sampler chain of `contracts.request.Sampling`, written to be read: every sampler is a few lines over the whole
vocabulary. Slow, exact, and independent of any engine's; what engines draw is compared with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from edgellm.contracts.draws import uniform
from edgellm.contracts.request import Sampling
from edgellm.contracts.runner import Logprob, SampleSpec

SAMPLERS = frozenset(Sampling.__struct_fields__) | {"logprobs"}


def reference_choice(
    logits: Sequence[float], spec: SampleSpec, position: int, history: Sequence[int] = (), carry: float = 0.0
) -> tuple[int, float]:
    """The token drawn, and the carry for the next. `history`: all tokens before."""
    changed = reference_logits(logits, spec, history)
    order = sorted(range(len(changed)), key=lambda token: (-changed[token], token))
    if spec.temperature == 0:
        return order[0], carry
    if spec.mirostat:
        mu = carry if carry else 2 * spec.mirostat_tau
        p = probabilities(changed, order)
        kept = [token for token in order if token == order[0] or -math.log2(p[token] or 1e-300) <= mu]
    else:
        kept = reference_kept(changed, order, spec)
        if uniform(spec.seed, spec.choice, position, stream=1) < spec.xtc_probability:
            p = probabilities(changed, kept)
            above = [token for token in kept if p[token] >= spec.xtc_threshold]
            kept = kept[max(0, len(above) - 1) :]
    token = _drawn(changed, kept, spec.temperature, uniform(spec.seed, spec.choice, position))
    if spec.mirostat:
        surprise = -math.log2(probabilities(changed, order)[token])
        carry = mu - spec.mirostat_eta * (surprise - spec.mirostat_tau)
    return token, carry


def reference_logits(logits: Sequence[float], spec: SampleSpec, history: Sequence[int]) -> list[float]:
    """After logit_bias, penalties and DRY."""
    changed = [logit + spec.logit_bias.get(token, 0.0) for token, logit in enumerate(logits)]
    for token, count in Counter(_last(history, spec.repeat_last_n)).items():
        if changed[token] > 0:
            changed[token] /= spec.repeat_penalty
        else:
            changed[token] *= spec.repeat_penalty
        changed[token] -= spec.presence_penalty + count * spec.frequency_penalty
    if spec.dry_multiplier:
        for token, length in reference_repetitions(_last(history, spec.dry_last_n), spec.dry_breakers).items():
            if length >= spec.dry_allowed_length:
                changed[token] -= spec.dry_multiplier * spec.dry_base ** (length - spec.dry_allowed_length)
    return changed


def reference_repetitions(history: Sequence[int], breakers: frozenset[int]) -> dict[int, int]:
    """How long a repetition each token would continue: the longest end of `history` that it followed before."""
    found: dict[int, int] = {}
    for place in range(1, len(history)):
        length = 0
        while (
            length < place
            and history[place - 1 - length] == history[-1 - length]
            and history[-1 - length] not in breakers
        ):
            length += 1
        if length and history[place] not in breakers:
            found[history[place]] = max(length, found.get(history[place], 0))
    return found


def reference_kept(logits: Sequence[float], order: Sequence[int], spec: SampleSpec) -> list[int]:
    """What top-k, typical-p, top-p and min-p leave of `order`, likeliest first."""
    kept = list(order[: spec.top_k] if spec.top_k else order)
    if spec.typical_p < 1:
        p = probabilities(logits, kept)
        entropy = -math.fsum(x * math.log(x) for x in p.values() if x)
        peculiar = {token: abs(-math.log(p[token]) - entropy) if p[token] else math.inf for token in kept}
        typical = set(_until(logits, sorted(kept, key=lambda token: (peculiar[token], token)), spec.typical_p))
        kept = [token for token in kept if token in typical]
    if spec.top_p < 1:
        kept = _until(logits, kept, spec.top_p)
    return [token for token in kept if math.exp(logits[token] - logits[kept[0]]) >= spec.min_p]


def weights(logits: Sequence[float], tokens: Sequence[int], temperature: float = 1.0) -> dict[int, float]:
    """Of each of `tokens`, in their order; 1 for the likeliest."""
    peak = max(logits[token] for token in tokens)
    return {token: math.exp((logits[token] - peak) / temperature) for token in tokens}


def probabilities(logits: Sequence[float], tokens: Sequence[int]) -> dict[int, float]:
    """Of each of `tokens`, among them."""
    found = weights(logits, tokens)
    total = math.fsum(found.values())
    return {token: weight / total for token, weight in found.items()}


def reference_logprobs(logits: Sequence[float], token: int, count: int) -> Logprob:
    """Natural logarithms of the probabilities of `token` and of the `count` likeliest."""
    norm = math.log(math.fsum(math.exp(logit) for logit in logits))
    order = sorted(range(len(logits)), key=lambda other: (-logits[other], other))[:count]
    return Logprob(logits[token] - norm, tuple((other, logits[other] - norm) for other in order))


def _until(logits: Sequence[float], tokens: Sequence[int], limit: float) -> list[int]:
    """Tokens while the probability before them is below `limit`."""
    found = weights(logits, tokens)
    mass = limit * math.fsum(found.values())  # not divided: so ten equal weights have a tenth each, exactly
    kept: list[int] = []
    before = 0.0
    for token in tokens:
        if before >= mass:
            break
        kept.append(token)
        before += found[token]
    return kept


def _drawn(logits: Sequence[float], kept: Sequence[int], temperature: float, number: float) -> int:
    found = weights(logits, kept, temperature)
    target = number * math.fsum(found.values())
    reached = 0.0
    for token, weight in found.items():
        reached += weight
        if reached > target:
            return token
    return kept[-1]


def _last(tokens: Sequence[int], count: int) -> Sequence[int]:
    return tokens if count < 0 else tokens[len(tokens) - min(count, len(tokens)) :]
