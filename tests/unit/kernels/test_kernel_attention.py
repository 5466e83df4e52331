"""Paged attention and KV against plain float64, and its bits under every way of cutting, paging and mixing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch
from edgellm_kernels import ops
from edgellm_kernels.kv_kinds import KV_KINDS, kv_bytes
from edgellm_kernels.pages import Pages, Ragged
from edgellm_kernels.reference import attention
from edgellm_kernels.reference.kv import kv_read
from hypothesis import given, settings
from hypothesis import strategies as st

Array = npt.NDArray[np.float64]
# Relative to the largest value of a head: half a step of its code, or of its mantissa.
ERRORS = {"f32": 0.0, "f16": 2**-11, "bf16": 2**-8, "int8": 0.5 / 127 + 1e-6, "fp8": 2**-4}


@dataclass
class Text:
    """One sequence's queries, keys and values [length, heads, size], and how it is attended."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float = 0.2
    window: int = 0
    cap: float = 0.0

    @classmethod
    def random(cls, seed: int, length: int, heads: int, kv_heads: int, size: int, v_size: int) -> Text:
        generator = torch.Generator().manual_seed(seed)

        def draw(count: int, wide: int) -> torch.Tensor:
            return torch.randn((length, count, wide), generator=generator)

        return cls(draw(heads, size), draw(kv_heads, size), draw(kv_heads, v_size))

    def __len__(self) -> int:
        return int(self.q.shape[0])

    def plainly(self) -> Array:
        """Row by row and head by head, in float64."""
        q, k, v = (x.double().numpy() for x in (self.q, self.k, self.v))
        result = np.empty((*q.shape[:2], v.shape[2]))
        group = q.shape[1] // k.shape[1]
        for row, head in np.ndindex(*q.shape[:2]):
            first = max(0, row - self.window + 1) if self.window else 0
            scores = k[first : row + 1, head // group] @ q[row, head] * self.scale
            if self.cap:
                scores = self.cap * np.tanh(scores / self.cap)
            weights = np.exp(scores - scores.max())
            result[row, head] = weights / weights.sum() @ v[first : row + 1, head // group]
        return result

    def pages(self, kind: str = "f32", block: int = 16, blocks: int = 0) -> Pages:
        need = blocks or -(-len(self) // block) + 3
        return Pages.empty(kind, need, block, self.k.shape[1], self.k.shape[2], self.v.shape[2])

    def computed(self, pages: Pages, table: torch.Tensor, chunks: list[int]) -> torch.Tensor:
        """All rows, in calls of so many."""
        parts, start = [], 0
        for count in chunks:
            end = start + count
            ragged = Ragged((start,), (count,), table[None])
            ops.kv_write(pages, self.k[start:end], self.v[start:end], ragged.slots(pages.block_size))
            parts.append(self.attend(self.q[start:end], pages, ragged))
            start = end
        return torch.cat(parts)

    def attend(self, q: torch.Tensor, pages: Pages, ragged: Ragged) -> torch.Tensor:
        return ops.attention(q, pages, ragged, scale=self.scale, window=self.window, soft_cap=self.cap)


def table(pages: Pages, seed: int = 0) -> torch.Tensor:
    return torch.randperm(pages.k.shape[0], generator=torch.Generator().manual_seed(seed))


def chunks(length: int, size: int) -> list[int]:
    return [min(size, length - start) for start in range(0, length, size)]


def distance(found: torch.Tensor, wanted: Array) -> float:
    return float(np.linalg.norm(found.double().numpy() - wanted) / np.linalg.norm(wanted))


@settings(max_examples=25)
@given(
    st.integers(1, 330),
    st.sampled_from([(1, 1), (4, 2), (6, 2), (7, 1), (5, 5)]),
    st.sampled_from([(16, 16), (24, 8), (5, 3)]),
    st.sampled_from([0, 1, 40, 300]),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from([1, 16, 24]),
)
def test_against_plain_attention(
    length: int, heads: tuple[int, int], sizes: tuple[int, int], window: int, cap: float, block: int
) -> None:
    text = Text.random(length, length, *heads, *sizes)
    text.window, text.cap = window, cap
    pages = text.pages(block=block)
    assert distance(text.computed(pages, table(pages), [length]), text.plainly()) < 2e-6


@pytest.mark.parametrize("window", [0, 300])
def test_long_texts_over_several_tiles_of_keys(window: int) -> None:
    text = Text.random(8, 800, 3, 1, 16, 16)
    text.scale, text.window = 1.0, window  # so that the highest score is another in every tile
    pages = text.pages()
    wanted = text.plainly()
    found = text.computed(pages, table(pages), [800])
    assert distance(found, wanted) < 2e-6
    assert distance(found[512:], wanted[512:]) < 2e-6


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("heads", [(6, 2), (2, 2), (40, 2)])
@pytest.mark.parametrize("kind", KV_KINDS)
def test_chunks_and_pages_change_no_bit(kind: str, heads: tuple[int, int], window: int) -> None:
    text = Text.random(3, 300, *heads, 32, 24)
    text.window, text.cap = window, 20.0
    pages = text.pages(kind)
    at_once = text.computed(pages, table(pages), [300])
    for cut, block in (([238, *[1] * 62], 16), (chunks(300, 7), 1), (chunks(300, 64), 24), ([1, 113, 186], 16)):
        other = text.pages(kind, block)
        assert torch.equal(text.computed(other, table(other, len(cut)), cut), at_once)


@pytest.mark.parametrize("window", [0, 300])
def test_what_is_held_before_tiles_are_joined_has_an_end(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the text; and no bit depends on it."""
    text = Text.random(9, 1100, 4, 2, 16, 24)
    text.window = window
    pages = text.pages()
    at_once = text.computed(pages, table(pages), [1000, 100])
    held: list[int] = []
    joined = attention._joined

    def watched(highest: torch.Tensor, totals: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        held.append(values.numel())
        return joined(highest, totals, values)

    monkeypatch.setattr(attention, "_joined", watched)
    monkeypatch.setattr(attention, "_VALUES", 1 << 15)
    assert torch.equal(text.computed(pages, table(pages), [1000, 100]), at_once)
    assert 1 << 12 < max(held) <= 1 << 15


def test_company_changes_no_bit() -> None:
    """Prefill chunks, decode rows and drafts of several texts in one call, in any order, in one pool."""
    texts = [Text.random(seed, length, 6, 2, 32, 32) for seed, length in enumerate((300, 41, 5, 1))]
    pages = texts[0].pages(blocks=60)
    free = table(pages).split(20)
    alone = []
    for text in texts:
        own = text.pages()
        alone.append(text.computed(own, table(own), [len(text)]))
    tables = torch.stack([torch.nn.functional.pad(free[i % 3], (0, 20 - len(free[i % 3]))) for i in (0, 1, 2)])
    for which, starts in (((0, 1, 2), (0, 0, 0)), ((2, 0, 1), (4, 200, 40)), ((1, 0), (3, 299))):
        ragged = Ragged(
            starts, tuple(len(texts[i]) - s for i, s in zip(which, starts, strict=True)), tables[list(which)]
        )
        parts = [(texts[i], slice(s, None)) for i, s in zip(which, starts, strict=True)]
        k, v, q = (torch.cat([getattr(text, name)[part] for text, part in parts]) for name in "kvq")
        ops.kv_write(pages, k, v, ragged.slots(16))
        found = ops.attention(q, pages, ragged, scale=0.2)
        assert torch.equal(found, torch.cat([alone[i][s:] for i, s in zip(which, starts, strict=True)]))


def test_a_product_whose_bits_depend_on_the_place_of_a_row_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries stand at their own place of a tile, whatever the call brings along."""
    real = torch.bmm

    def by_place(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        return real(left, right, out=out).mul_(1 + torch.arange(left.shape[1])[:, None] * 1e-6)

    monkeypatch.setattr(torch, "bmm", by_place)
    text = Text.random(5, 270, 4, 2, 16, 16)
    pages = text.pages()
    at_once = text.computed(pages, table(pages), [270])
    for cut in ([5, 3, 1, 1, 260], chunks(270, 7)):
        other = text.pages()
        assert torch.equal(text.computed(other, table(other), cut), at_once)


def test_latent_attention_reads_values_from_keys() -> None:
    """MLA, absorbed: one KV head of 72 values, whose first 64 are the value; 16 heads read it."""
    text = Text.random(1, 70, 16, 1, 72, 64)
    text.v = text.k[..., :64]
    pages = Pages.empty("f32", 8, 16, 1, 72, 64, shares_v=True)
    ragged = Ragged((0,), (70,), table(pages)[None])
    ops.kv_write(pages, text.k, None, ragged.slots(16))
    found = text.attend(text.q, pages, ragged)
    assert distance(found, text.plainly()) < 2e-6
    for row in (0, 33, 69):
        alone = text.attend(text.q[row : row + 1], pages, Ragged((row,), (1,), ragged.tables))
        assert torch.equal(alone[0], found[row])
    with pytest.raises(ValueError, match="part of the keys"):
        ops.kv_write(pages, text.k, text.v, ragged.slots(16))


def test_what_lies_outside_is_never_touched() -> None:
    """Blocks before the window and beyond the text may be gone, and what was in a block before does not matter."""
    text = Text.random(2, 200, 4, 2, 16, 16)
    text.window = 47  # position 144, where a block begins, is the first that is seen
    pages = text.pages()
    names = table(pages)
    wanted = text.computed(pages, names, [200])
    gone = names.clone()
    gone[: (190 - 46) // 16] = -1
    gone[13:] = 10**6
    for tensor in pages.tensors():
        used = set(names[:13].tolist())
        for block in range(tensor.shape[0]):
            if block not in used:
                tensor[block] = math.nan
        tensor[names[12], 200 - 12 * 16 :] = math.nan
        tensor[names[: (190 - 46) // 16]] = math.nan
    found = text.attend(text.q[190:], pages, Ragged((190,), (10,), gone[None]))
    assert torch.equal(found, wanted[190:])


def test_a_row_that_is_not_finite_spoils_no_other_text() -> None:
    good, bad = Text.random(0, 40, 4, 2, 16, 16), Text.random(1, 40, 4, 2, 16, 16)
    bad.k[20] = math.nan
    bad.v[30] = math.inf
    for kind in KV_KINDS:
        own = good.pages(kind)
        wanted = good.computed(own, table(own), [40])
        pages = good.pages(kind, blocks=8)
        tables = table(pages).view(2, 4)[:, :3]
        ragged = Ragged((0, 0), (40, 40), tables)
        k, v, q = (torch.cat((getattr(bad, name), getattr(good, name))) for name in "kvq")
        ops.kv_write(pages, k, v, ragged.slots(16))
        found = ops.attention(q, pages, ragged, scale=0.2)
        assert torch.equal(found[40:], wanted)
        assert found[20:40].isnan().all()


@pytest.mark.parametrize("kind", KV_KINDS)
def test_what_is_written_can_be_read(kind: str) -> None:
    text = Text.random(0, 50, 2, 2, 32, 16)
    text.k[3, 1] = 0.0
    text.k[4] *= 1000
    text.v[5] *= 1e-3
    pages = text.pages(kind)
    ragged = Ragged((0,), (50,), table(pages)[None])
    slots = ragged.slots(16)
    ops.kv_write(pages, text.k, text.v, slots)
    for found, wanted in zip(kv_read(pages, slots), (text.k, text.v), strict=True):
        largest = wanted.abs().amax(-1, keepdim=True)
        assert ((found - wanted).abs() <= ERRORS[kind] * largest).all()
    assert not kv_read(pages, slots)[0][3, 1].any()


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("shares_v", [False, True])
def test_a_token_takes_what_is_said(kind: str, shares_v: bool) -> None:
    pages = Pages.empty(kind, 5, 16, 3, 40, 24, shares_v=shares_v)
    assert pages.nbytes == 5 * 16 * kv_bytes(kind, 3, 40, 24, shares_v=shares_v)
    assert pages.shares_v == shares_v


@pytest.mark.parametrize("kind", KV_KINDS)
def test_blocks_can_be_copied_and_taken_out(kind: str) -> None:
    text = Text.random(0, 48, 4, 2, 16, 16)
    pages = text.pages(kind, blocks=9)
    wanted = text.computed(pages, torch.tensor([4, 1, 7]), [48])
    pages.copy_block(1, 2)
    parked = pages.read([4, 2, 7])
    pages.write([4, 7], [torch.zeros_like(tensor)[:2] for tensor in parked])
    pages.write([8, 0, 3], parked)
    found = text.attend(text.q, pages, Ragged((0,), (48,), torch.tensor([[8, 0, 3]])))
    assert torch.equal(found, wanted)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="no KV kind q4; there are f16, f32, bf16, int8, fp8"):
        Pages.empty("q4", 1, 16, 1, 8, 8)
    with pytest.raises(ValueError, match="values of 9 cannot be part of keys of 8"):
        Pages.empty("f32", 1, 16, 1, 8, 9, shares_v=True)
    pages = Pages.empty("f32", 2, 16, 2, 8, 8)
    one = Ragged((0,), (1,), torch.tensor([[0]]))
    with pytest.raises(ValueError, match="do not fit"):
        ops.attention(torch.zeros(1, 3, 8), pages, one, scale=1.0)
    with pytest.raises(ValueError, match="do not fit"):
        ops.attention(torch.zeros(2, 2, 8), pages, one, scale=1.0)
    with pytest.raises(ValueError, match="do not fit pages"):
        ops.kv_write(pages, torch.zeros(1, 1, 8), torch.zeros(1, 1, 8), one.slots(16))
    with pytest.raises(ValueError, match="missing"):
        ops.kv_write(pages, torch.zeros(1, 2, 8), None, one.slots(16))
    with pytest.raises(ValueError, match="beyond a table of 1 blocks"):
        Ragged((16,), (1,), torch.tensor([[0]])).slots(16)
    with pytest.raises(ValueError, match="sequences of"):
        Ragged((0,), (0,), torch.tensor([[0]]))
    with pytest.raises(ValueError, match="2 starts, 1 counts"):
        Ragged((0, 1), (1,), torch.tensor([[0]]))


def test_rows_of_a_call() -> None:
    ragged = Ragged((5, 0), (2, 3), torch.tensor([[9, 4], [2, 3]]))
    assert ragged.rows == 5
    assert ragged.positions().tolist() == [5, 6, 0, 1, 2]
    assert ragged.slots(4).tolist() == [4 * 4 + 1, 4 * 4 + 2, 8, 9, 10]
