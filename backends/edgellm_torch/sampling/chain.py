"""From rows of logits to tokens: what the samplers leave of each row, and the draw from it.

Rows of a kind are worked on together, in descending order and double precision: a sampler is a mask over that order,
and every row has numbers of its own. Sums run along a row in order, whatever other rows there are; so a row's token is
a function of its logits, the tokens before, the spec and the position alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edgellm.contracts.chain import COLDEST, LUCK
from edgellm.contracts.draws import uniform
from edgellm.contracts.runner import SampleSpec
from edgellm_torch.sampling.ordering import head, rows_at_once
from edgellm_torch.sampling.penalties import Draw, reweighed
from edgellm_torch.transfer import upload

NOTHING = -200.0  # a logit this far below the peak weighs 0 in single precision
Chosen = tuple[int | None, float]  # the token, None where logits are not finite; the carry for the next


class Drawn(NamedTuple):
    """Tokens of rows of logits, on their device.

    tokens      int64 [rows]; any token where logits are not finite
    sound       bool [rows]: they are
    surprise    float64 [rows]: bits, where mirostat has to know; else 0
    """

    tokens: Tensor
    sound: Tensor
    surprise: Tensor


def draw(logits: Tensor, draws: Sequence[Draw]) -> Drawn:
    """One token for each row of float32 `logits`, [rows, vocabulary]. Nothing is read back from the device.

    A logit of -inf is a token that cannot be drawn; NaN anywhere, +inf, or -inf everywhere is not finite.
    """
    some = rows_at_once(logits.shape[1])
    if len(draws) > some:
        starts = range(0, len(draws), some)
        parts = [draw(logits[start : start + some], draws[start : start + some]) for start in starts]
        return Drawn(*(torch.cat(part) for part in zip(*parts, strict=True)))
    logits = reweighed(logits, draws)
    tokens = logits.argmax(-1)
    sound = logits.amax(-1).isfinite()  # NaN is the largest where there is one
    surprise = torch.zeros(len(draws), dtype=torch.float64, device=logits.device)
    for kind in (_mirostat, _short, _whole):
        rows = [row for row, draw in enumerate(draws) if _kind(draw.spec, logits.shape[1]) is kind]
        if not rows:
            continue
        if len(rows) == len(draws):
            tokens, surprise = kind(logits, draws)
            continue
        index = upload(rows, torch.int64, logits.device)
        found, bits = kind(logits.index_select(0, index), [draws[row] for row in rows])
        tokens, surprise = tokens.index_copy(0, index, found), surprise.index_copy(0, index, bits)
    return Drawn(tokens, sound, surprise)


def told(draws: Sequence[Draw], tokens: Sequence[int], sound: Sequence[bool], bits: Sequence[float]) -> list[Chosen]:
    """What was drawn, and the carry for the token after it, once the numbers are on the host."""
    return [
        (token, _carry(draw, surprise)) if good else (None, draw.carry)
        for draw, token, good, surprise in zip(draws, tokens, sound, bits, strict=True)
    ]


def choose(logits: Tensor, draws: Sequence[Draw]) -> list[Chosen]:
    """`draw`, and wait for it."""
    drawn = draw(logits, draws)
    return told(draws, drawn.tokens.tolist(), drawn.sound.tolist(), drawn.surprise.tolist())


def remembers(spec: SampleSpec) -> bool:
    """Whether a draw needs the carry of the one before."""
    return bool(spec.mirostat) and spec.temperature != 0


Kind = Callable[[Tensor, Sequence[Draw]], tuple[Tensor, Tensor]]  # tokens and surprise


def _kind(spec: SampleSpec, vocabulary: int) -> Kind | None:
    """How a row is drawn; None: the likeliest is taken."""
    if spec.temperature == 0:
        return None
    if remembers(spec):
        return _mirostat
    if spec.top_k == 1:
        return None
    return _short if 0 < spec.top_k < vocabulary else _whole


def _short(logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
    """Rows with a top-k: nothing beyond it need be known."""
    return _chain(logits, draws, max(draw.spec.top_k for draw in draws))


def _whole(logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
    return _chain(logits, draws, logits.shape[1])


def _chain(logits: Tensor, draws: Sequence[Draw], count: int) -> tuple[Tensor, Tensor]:
    """The usual chain, over the `count` likeliest of each row."""
    ids = head(logits, count)
    ordered = logits.gather(1, ids).double()
    specs = [draw.spec for draw in draws]
    top_k = _column([spec.top_k or count for spec in specs], logits)
    kept = torch.arange(count, device=logits.device) < top_k
    if any(spec.typical_p < 1 for spec in specs):
        kept = _typical(ordered, kept, specs)
    if any(spec.top_p < 1 for spec in specs):
        weights = _weights(ordered, kept)
        limit = _column([spec.top_p if spec.top_p < 1 else math.inf for spec in specs], logits)
        kept = kept & _below(weights, limit)
    if any(spec.min_p > 0 for spec in specs):
        least = _column([math.log(spec.min_p) if spec.min_p > 0 else -math.inf for spec in specs], logits)
        kept = kept & (ordered >= _peak(ordered, kept) + least)
    if any(spec.xtc_probability > 0 for spec in specs):
        kept = _without_top(ordered, kept, draws)
    tokens = _drawn(ids, ordered, kept, draws)
    return tokens, torch.zeros_like(tokens, dtype=torch.float64)


def _typical(ordered: Tensor, kept: Tensor, specs: Sequence[SampleSpec]) -> Tensor:
    """Of what is kept those of nearly the expected surprise, which is to say: of nearly the expected logit."""
    scaled = ordered - ordered[:, :1]
    weights = _weights(ordered, kept)
    total = _total(weights)
    expected = _total(weights * scaled.clamp(min=NOTHING)) / total
    distance = torch.where(kept, (scaled - expected).abs(), math.inf)
    nearest = distance.argsort(dim=-1, stable=True)
    limit = _column([spec.typical_p for spec in specs], ordered)
    near = torch.zeros_like(kept).scatter(1, nearest, _below(weights.gather(1, nearest), limit))
    return kept & (near | (limit >= 1))


def _without_top(ordered: Tensor, kept: Tensor, draws: Sequence[Draw]) -> Tensor:
    """XTC: of those at or above the threshold only the least likely stays, in rows whose luck says so."""
    weights = _weights(ordered, kept)
    threshold = _column([draw.spec.xtc_threshold for draw in draws], ordered)
    above = (kept & (weights >= threshold * _total(weights))).sum(-1, keepdim=True)
    rank = kept.long().cumsum(-1) - 1
    lucky = [
        uniform(draw.spec.seed, draw.spec.choice, draw.position, LUCK) < draw.spec.xtc_probability for draw in draws
    ]
    return kept & ((rank >= above - 1) | ~_column(lucky, ordered, torch.bool))


def _mirostat(logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
    """Drop what surprises more than mu bits, draw, and say how much the token surprised.

    Surprise is always the model's own, over the whole vocabulary and before temperature.
    """
    ids = head(logits, logits.shape[1])
    ordered = logits.gather(1, ids).double()
    peak = ordered[:, :1]
    norm = peak + _total((ordered - peak).exp()).log()
    bound = norm - _column([_mu(draw) for draw in draws], logits) * math.log(2)
    bound = torch.minimum(bound, peak)  # the likeliest stays, whatever mu
    tokens = _drawn(ids, ordered, ordered >= bound.float().double(), draws)
    return tokens, (norm[:, 0] - logits.gather(1, tokens[:, None])[:, 0].double()) / math.log(2)


def _mu(draw: Draw) -> float:
    """The most surprise that mirostat allows, bits."""
    return draw.carry or 2 * draw.spec.mirostat_tau


def _carry(draw: Draw, surprise: float) -> float:
    """For the next token: mirostat moves mu so that the surprise approaches tau."""
    spec = draw.spec
    if not remembers(spec):
        return draw.carry
    return (_mu(draw) - spec.mirostat_eta * (surprise - spec.mirostat_tau)) or math.ulp(0.0)


def _drawn(ids: Tensor, ordered: Tensor, kept: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The first token at which the weight reached exceeds the random number's part of all: int64 [rows]."""
    cold = _column([max(draw.spec.temperature, COLDEST) for draw in draws], ordered)
    reached = _weights(ordered, kept, cold).cumsum(-1)
    number = _column([uniform(draw.spec.seed, draw.spec.choice, draw.position) for draw in draws], ordered)
    total = reached[:, -1:]
    index = (reached <= number * total).sum(-1, keepdim=True)
    last = (reached < total).sum(-1, keepdim=True)  # the last one of weight: rounding may reach for more
    return ids.gather(1, torch.minimum(index, last))[:, 0]


def _weights(ordered: Tensor, kept: Tensor, temperature: Tensor | None = None) -> Tensor:
    """exp((logit - peak) / temperature) of what is kept, 1 for the largest of it; 0 for the others."""
    scaled = ordered - _peak(ordered, kept)
    if temperature is not None:
        scaled = scaled / temperature
    return torch.where(kept, scaled.exp(), 0.0)


def _peak(ordered: Tensor, kept: Tensor) -> Tensor:
    """The largest logit that is kept, [rows, 1]; every row keeps something."""
    return torch.where(kept, ordered, -math.inf).amax(-1, keepdim=True)


def _below(weights: Tensor, limit: Tensor) -> Tensor:
    """Where the weight before is below `limit` of all."""
    reached = weights.cumsum(-1)
    before = torch.nn.functional.pad(reached[:, :-1], (1, 0))
    return before < limit * reached[:, -1:]


def _total(values: Tensor) -> Tensor:
    """The sum of each row, [rows, 1], added in order: torch's own sum adds as many at once as there is room for."""
    return values.cumsum(-1)[:, -1:]


def _column(values: Sequence[float], like: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    return upload(values, dtype, like.device)[:, None]
