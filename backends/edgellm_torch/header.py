"""Reads a model's header on behalf of the architectures: numbers by key, tensors with the shapes they must have."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from edgellm_kernels.blocks import BLOCKS

from edgellm.contracts.engine import ModelFile, TensorInfo
from edgellm.errors import LoadFailed
from edgellm.formats.layers import layers as layer_memory
from edgellm_torch.config import Attention, Experts, Gated, LayerNorm, Linear, Norm, Rope

_LARGEST = 1 << 24  # of any size that a header may name
_AGAIN = "the file is damaged or not what it says; pull the model again, or get it from elsewhere"


class Header:
    """The header of one file. What is missing or makes no sense raises LoadFailed, which names it."""

    def __init__(self, model: ModelFile) -> None:
        self.model = model
        self.tensors: dict[str, TensorInfo] = {tensor.name: tensor for tensor in model.tensors}

    # -- keys: without the architecture's name, which every one begins with

    def value(self, key: str) -> Any:
        """As in the file; None where it is not there."""
        return self.model.metadata.get(f"{self.model.architecture}.{key}")

    def number(self, key: str, default: int | None = None, layer: int | None = None) -> int:
        """A whole number from 0; of a list, which gives one for each layer, that of `layer`."""
        value = self.value(key)
        if isinstance(value, list) and layer is not None and layer < len(value):
            value = value[layer]
        if value is None and default is not None:
            return default
        if type(value) is not int or not 0 <= value <= _LARGEST:
            self._bad(key, value, f"a whole number up to {_LARGEST:,}")
        return int(value)

    def size(self, key: str, default: int | None = None, layer: int | None = None) -> int:
        """A whole number above 0."""
        value = self.number(key, default, layer)
        if value < 1:
            self._bad(key, value, "a number above 0")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not math.isfinite(value):
            self._bad(key, value, "a number")
        return float(value)

    def truth(self, key: str, default: bool = False) -> bool:
        value = self.value(key)
        return bool(value) if value is not None else default

    def text(self, key: str, default: str) -> str:
        value = self.value(key)
        return value if isinstance(value, str) else default

    # -- sizes that all families share

    @property
    def layers(self) -> int:
        count = self.size("block_count")
        if count > len(self.tensors):
            self._bad("block_count", count, f"at most the {len(self.tensors)} tensors that there are")
        return count

    @property
    def width(self) -> int:
        return self.size("embedding_length")

    @property
    def vocabulary(self) -> int:
        shape = self.tensor("token_embd.weight").shape
        if len(shape) != 2:
            raise self.damaged(f"tensor token_embd.weight has the shape {shape}")
        return shape[1]

    def head_size(self, which: str = "key") -> int:
        """Numbers in a head's keys or values."""
        said = self.number(f"attention.{which}_length", 0)
        return said or self.share()

    def share(self) -> int:
        """The width divided among the heads, whatever their size."""
        heads = self.size("attention.head_count", layer=0)
        if heads > self.width:
            self._bad("attention.head_count", heads, f"at most the width, {self.width}")
        return self.width // heads

    def windows(self) -> list[int]:
        """How far each layer looks back; 0: over everything."""
        found = {memory.layer: memory.window for memory in layer_memory(self.model)}
        return [found.get(layer, 0) for layer in range(self.layers)]

    # -- tensors

    def has(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> TensorInfo:
        found = self.tensors.get(name)
        if found is None:
            raise LoadFailed(f"{self.model.path.name} has no tensor {name}", hint=_AGAIN)
        return found

    def linear(self, name: str, columns: int, rows: int, stack: int = 0) -> Linear:
        """`name`.weight, with `name`.bias where that is there."""
        self._shaped(f"{name}.weight", (columns, rows, stack) if stack else (columns, rows))
        bias = f"{name}.bias"
        if not self.has(bias):
            return Linear(f"{name}.weight", rows, columns, stack=stack)
        self._shaped(bias, (rows,))
        return Linear(f"{name}.weight", rows, columns, bias, stack)

    def norm(self, name: str, size: int) -> Norm:
        self._shaped(f"{name}.weight", (size,))
        return Norm(f"{name}.weight", size, self.real("attention.layer_norm_rms_epsilon", 1e-6))

    def layer_norm(self, name: str, size: int) -> LayerNorm:
        """`name`.weight, with `name`.bias where that is there."""
        self._shaped(f"{name}.weight", (size,))
        epsilon = self.real("attention.layer_norm_epsilon")
        return LayerNorm(f"{name}.weight", self.vector(f"{name}.bias", size), size, epsilon)

    def vector(self, name: str, size: int) -> str:
        """The tensor's name, once its size is checked; "" where it is not there."""
        if self.has(name):
            self._shaped(name, (size,))
            return name
        return ""

    def _shaped(self, name: str, shape: tuple[int, ...]) -> None:
        """Check a tensor that is going to be read: its shape, outermost last, and that its type is known."""
        found = self.tensor(name)
        if found.shape != shape:
            raise self.damaged(f"tensor {name} has the shape {found.shape}; its other numbers say {shape}")
        if found.type not in BLOCKS:
            raise LoadFailed(
                f"{self.model.path.name}: tensor {name} is stored as {found.type}, which this engine does not know",
                hint="it knows " + ", ".join(BLOCKS) + "; leave the choice of engine to edgellm, or take another file",
            )

    def damaged(self, what: str) -> LoadFailed:
        """The error for a header that contradicts itself."""
        return LoadFailed(f"{self.model.path.name}: {what}", hint=_AGAIN)

    def _bad(self, key: str, value: object, expected: str) -> NoReturn:
        said = "is missing" if value is None else f"is {str(value)[:40]}, not {expected}"
        raise self.damaged(f"{self.model.architecture}.{key} {said}")

    # -- parts as most families have them

    def rope(self, style: Any, *, dims: int | None = None, base: str = "rope.freq_base") -> Rope:
        """Rotary positions as the keys say; `base`: the key of the base, where it is not the usual one.

        The borders of YaRN are the usual ones, whatever the file says: as llama.cpp has it for these families.
        """
        dims = dims or self.size("rope.dimension_count", self.head_size())
        if dims % 2:
            self._bad("rope.dimension_count", dims, "an even number")
        scaling = self.text("rope.scaling.type", "linear")  # by a factor of 1, mostly
        if scaling not in ("none", "linear", "yarn"):
            self._bad("rope.scaling.type", scaling, "none, linear or yarn")
        factor = self.real("rope.scaling.factor", self.real("rope.scale_linear", 1.0)) or 1.0
        original = self.number("rope.scaling.original_context_length", self.number("context_length", 0))
        frequency = self.real(base, self.real("rope.freq_base", 10_000.0))
        if factor < 0:
            self._bad("rope.scaling.factor", factor, "a number above 0")
        if frequency <= 1:
            self._bad("rope.freq_base", frequency, "a number above 1")
        if scaling == "yarn" and original < 1:
            self._bad("rope.scaling.original_context_length", original, "a number above 0, as YaRN wants it")
        return Rope(
            dims=dims,
            base=frequency,
            style=style,
            scaling=scaling,  # type: ignore[arg-type]  # one of the three
            factor=factor,
            original_context=original,
            attention_factor=self.real("rope.scaling.attn_factor", 1.0),
            factors=self.vector("rope_freqs.weight", dims // 2),
        )

    def attention(
        self,
        layer: int,
        rope: Rope | None,
        *,
        norms: bool = False,
        window: int = 0,
        scale: float | None = None,
        soft_cap: float = 0.0,
    ) -> Attention:
        """Grouped-query attention in four matrices; `norms`: of each head's query and key."""
        at = f"blk.{layer}."
        heads = self.size("attention.head_count", layer=layer)
        kv_heads = self.size("attention.head_count_kv", heads, layer)
        if heads % kv_heads:
            self._bad("attention.head_count", heads, f"a multiple of attention.head_count_kv, {kv_heads}")
        key, value, width = self.head_size("key"), self.head_size("value"), self.width
        if rope is not None and rope.dims > key:
            self._bad("rope.dimension_count", rope.dims, f"at most a head's {key} numbers")
        return Attention(
            heads=heads,
            kv_heads=kv_heads,
            key_size=key,
            value_size=value,
            scale=1 / math.sqrt(key) if scale is None else scale,
            query=self.linear(f"{at}attn_q", width, heads * key),
            key=self.linear(f"{at}attn_k", width, kv_heads * key),
            value=self.linear(f"{at}attn_v", width, kv_heads * value),
            output=self.linear(f"{at}attn_output", heads * value, width),
            rope=rope,
            query_norm=self.norm(f"{at}attn_q_norm", key) if norms else None,
            key_norm=self.norm(f"{at}attn_k_norm", key) if norms else None,
            window=window,
            soft_cap=soft_cap,
        )

    def gated(self, layer: int, activation: Any = "silu", *, suffix: str = "", size: int = 0) -> Gated:
        """ffn_gate, ffn_up and ffn_down, each with `suffix`."""
        at, width = f"blk.{layer}.ffn_", self.width
        size = size or self.size("feed_forward_length", layer=layer)
        return Gated(
            self.linear(f"{at}gate{suffix}", width, size),
            self.linear(f"{at}up{suffix}", width, size),
            self.linear(f"{at}down{suffix}", size, width),
            activation,
        )

    def experts(self, layer: int, **how: Any) -> Experts:
        """ffn_gate_inp and the stacked matrices of the experts; `how`: what else Experts has."""
        at, width, count = f"blk.{layer}.ffn_", self.width, self.size("expert_count")
        size = self.size("expert_feed_forward_length", self.number("feed_forward_length", 0, layer))
        used = self.size("expert_used_count")
        groups, groups_used = how.get("groups", 1), how.get("groups_used", 1)
        if used > count:
            self._bad("expert_used_count", used, f"at most the {count} that there are")
        if count % groups or groups_used > groups or used > count // groups * groups_used:
            self._bad("expert_group_count", groups, f"a share of {count} experts from which {used} can be taken")
        return Experts(
            router=self.linear(f"{at}gate_inp", width, count),
            gate=self.linear(f"{at}gate_exps", width, size, count),
            up=self.linear(f"{at}up_exps", width, size, count),
            down=self.linear(f"{at}down_exps", size, width, count),
            used=used,
            correction=self.vector(f"blk.{layer}.exp_probs_b.bias", count),
            **how,
        )

    def output(self) -> Linear:
        """The matrix that makes logits: its own, or the embedding's."""
        name = "output" if self.has("output.weight") else "token_embd"
        return self.linear(name, self.width, self.vocabulary)

    def embedding(self) -> Linear:
        return self.linear("token_embd", self.width, self.vocabulary)
