"""The ways keys and values are stored, and what a token takes. Needs no torch."""

from __future__ import annotations

from typing import Final

SCALE_BYTES = 4  # float32, one per token and head
KV_KINDS: Final[dict[str, int]] = {"f16": 2, "f32": 4, "bf16": 2, "int8": 1, "fp8": 1}  # bytes of an element
SCALED: Final = frozenset({"int8", "fp8"})


def kv_bytes(kind: str, kv_heads: int, k_size: int, v_size: int, *, shares_v: bool = False) -> int:
    """Bytes that one layer keeps of one token. `shares_v`: values are part of the keys. ValueError: unknown kind."""
    check_kind(kind)
    tensors = (k_size,) if shares_v else (k_size, v_size)
    scale = SCALE_BYTES if kind in SCALED else 0
    return kv_heads * sum(size * KV_KINDS[kind] + scale for size in tensors)


def check_kind(kind: str) -> None:
    """ValueError, with the kinds there are, for one that is not."""
    if kind not in KV_KINDS:
        raise ValueError(f"there is no KV kind {kind}; there are {', '.join(KV_KINDS)}")
