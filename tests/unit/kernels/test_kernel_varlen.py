"""Attention over whole texts against plain float64, and its bits in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from edgellm_kernels import ops
from edgellm_kernels.reference import varlen

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
SHAPES = ((4, 4, 8, 8), (6, 2, 16, 8), (12, 1, 8, 24))  # heads, kv_heads, k_size, v_size
RULES = ("plain", "with slopes", "within reach")


def draw(shape: tuple[int, int, int, int], rows: int, seed: int = 1) -> Parts:
    heads, kv_heads, k_size, v_size = shape
    generator = torch.Generator().manual_seed(seed)

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn((rows, *size), generator=generator)

    return numbers(heads, k_size), numbers(kv_heads, k_size), numbers(kv_heads, v_size)


def rules(name: str, heads: int) -> dict[str, Any]:
    slopes = 2.0 ** -torch.arange(1.0, heads + 1) if name == "with slopes" else None
    return {"scale": 0.3, "slopes": slopes, "reach": 5 if name == "within reach" else None}


def plainly(parts: Parts, scale: float, slopes: torch.Tensor | None, reach: int | None) -> npt.NDArray[np.float64]:
    """One text, row by row and head by head."""
    q, k, v = (x.double().numpy() for x in parts)
    result = np.empty((*q.shape[:2], v.shape[2]))
    for row, head in np.ndindex(*q.shape[:2]):
        of = head // (q.shape[1] // k.shape[1])
        scores = k[:, of] @ q[row, head] * scale
        if slopes is not None:
            scores = scores - float(slopes[head]) * abs(np.arange(len(k)) - row)
        if reach is not None:
            scores = np.where(abs(np.arange(len(k)) - row) > reach, -np.inf, scores)
        weights = np.exp(scores - scores.max())
        result[row, head] = weights / weights.sum() @ v[:, of]
    return result


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_what_it_says(shape: tuple[int, int, int, int], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = (1, 37, 2, 16)
    parts = draw(shape, sum(counts))
    how = rules(name, shape[0])
    found = ops.varlen_attention(*parts, counts, **how)
    monkeypatch.setattr(varlen, "_SCORES", 200)  # some queries at a time, as with long texts
    in_parts = ops.varlen_attention(*parts, counts, **how)
    start = 0
    for count in counts:
        q, k, v = (part[start : start + count] for part in parts)
        expected = plainly((q, k, v), **how)
        for result in (found, in_parts):
            assert np.abs(result[start : start + count].numpy() - expected).max() < 2e-6
        start += count


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_has_the_same_bits_in_any_company(shape: tuple[int, int, int, int], name: str) -> None:
    for length in (1, 3, 16, 61):
        how = rules(name, shape[0])
        text = draw(shape, length, seed=length)
        alone = ops.varlen_attention(*text, [length], **how)
        for before, after in ((0, 1), (1, 0), (5, 33), (64, 7)):
            others = [draw(shape, count, seed=9) for count in (before, after)]
            q, k, v = (torch.cat((a, b, c)) for a, b, c in zip(others[0], text, others[1], strict=True))
            counts = [count for count in (before, length, after) if count]
            together = ops.varlen_attention(q, k, v, counts, **how)
            assert torch.equal(together[before : before + length], alone)


def test_means_have_the_same_bits_in_any_company() -> None:
    counts = (1, 37, 2, 16)
    x = torch.randn((sum(counts), 24), generator=torch.Generator().manual_seed(3))
    found = ops.varlen_mean(x, counts)
    for text, mean in zip(x.split(counts), found, strict=True):
        assert np.abs(mean.double().numpy() - text.double().numpy().mean(0)).max() < 1e-6
        assert torch.equal(ops.varlen_mean(text.clone(), [len(text)])[0], mean)
    with pytest.raises(ValueError, match="are not the 56"):
        ops.varlen_mean(x, (1, 37, 2))


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = draw((4, 2, 8, 8), 6)
    for counts in ([5], [6, 0], [7], [-1, 7]):
        with pytest.raises(ValueError, match="are not the 6"):
            ops.varlen_attention(q, k, v, counts, scale=1.0)
    for keys, values in ((k[:5], v), (k, v[:5]), (k[..., :7], v), (k[:, :1], v), (q[:, :3], q[:, :3])):
        with pytest.raises(ValueError, match="do not fit"):
            ops.varlen_attention(q, keys, values, [6], scale=1.0)
