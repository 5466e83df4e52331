"""What each layer of a model keeps of a text, from the header: the arithmetic behind every memory plan.

Numbers, not bytes: how an engine stores them is its own affair. The rules are llama.cpp's (which keys count, which
architectures have windows and since which layer), as GGUF files are written for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from edgellm.contracts.engine import KVKind, ModelFile


class LayerMemory(msgspec.Struct, frozen=True):
    """One kind of memory of one layer. A layer may have two (attention beside a recurrent state), or none.

    values    numbers kept per token; for a recurrent state 0
    state     numbers kept per sequence, whatever its length
    window    tokens that a sliding layer looks back; for others 0
    """

    layer: int
    kind: KVKind
    values: int = 0
    state: int = 0
    window: int = 0


class _Windows(NamedTuple):
    """One layer in `period` attends to everything: the last of them, or the first."""

    period: int
    first: bool = False
    window: int = 0  # where the file does not say


# Where windows are, when the file has no pattern of its own. An architecture that is not here keeps everything, even if
# its file names a window: llama.cpp has no windows for it then.
_WINDOWED: Final[dict[str, _Windows]] = {
    "afmoe": _Windows(4),
    "cohere2": _Windows(4),
    "cohere2moe": _Windows(4, first=True),
    "exaone-moe": _Windows(4, window=128),
    "exaone4": _Windows(4),
    "gemma2": _Windows(2, window=4096),
    "gemma3": _Windows(6),
    "gemma3n": _Windows(5),
    "gpt-oss": _Windows(2),
    "laguna": _Windows(4, first=True),
    "llama4": _Windows(4, window=8192),
    "mellum": _Windows(4),
    "muse-glimmer": _Windows(4),
    "olmo2": _Windows(4),
    "plamo3": _Windows(8),
    "smallthinker": _Windows(4, first=True),
}
_ALL_WINDOWED: Final = frozenset({"lfm2"})  # every attention layer
_NEVER_WINDOWED: Final = frozenset({"phi3"})  # its files name windows that are not used
_EVERY_FOURTH: Final = frozenset(
    {"qwen3next", "qwen35", "qwen35moe", "minimax-01"}
)  # attends; the others are recurrent
_BOTH: Final = frozenset({"falcon-h1"})  # every layer has attention and a recurrent state
_SHARED_FROM: Final = {"gemma3n": 20}  # from this layer on, the keys and values of earlier ones are used again
# Encoders see a whole text at once and keep nothing.
_ENCODERS: Final = frozenset(
    {"bert", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3"}
    | {"eurobert", "gemma-embedding"}
)
_ATTENTION: Final = ("attn_k.", "attn_qkv.", "attn_kv_a_mqa.", "attn_kv.", "attn_kv_b.", "attn_k_b.")
_RECURRENT: Final = ("ssm_", "shortconv.", "time_mix_")


def layers(model: ModelFile) -> list[LayerMemory]:
    """What `model` keeps, layer by layer. Values of the wrong type count as absent; nothing here raises."""
    if model.architecture in _ENCODERS:
        return []
    facts = _Facts(model)
    found: list[LayerMemory] = []
    for layer in range(facts.count):
        recurrent = facts.recurrent(layer)
        if recurrent:
            found.append(LayerMemory(layer, "recurrent", state=facts.state))
        if not recurrent or model.architecture in _BOTH:
            found.extend(facts.attention(layer))
    return found


class _Facts:
    """The keys of one header that decide."""

    def __init__(self, model: ModelFile) -> None:
        self.model = model
        self.architecture = model.architecture
        every = min(self.number("block_count"), 1 << 16)
        # The last layers may be a head that guesses tokens ahead: it has weights, and no memory in a plain run.
        self.count = max(0, every - self.number("nextn_predict_layers"))
        self.shared_from = _SHARED_FROM.get(self.architecture, every - self.number("attention.shared_kv_layers"))
        self.windows = self._windows()
        self.tensors = _tensors_by_layer(model, every)
        self.state = self._state()

    def number(self, key: str, default: int = 0) -> int:
        """A whole number of the architecture; of a list the largest."""
        value = self._value(key)
        if isinstance(value, list):
            return max((_whole(item) for item in value), default=default)
        return _whole(value) or default

    def per_layer(self, key: str, layer: int, default: int) -> int:
        """A number that may be given once for all layers, or for each."""
        value = self._value(key)
        if isinstance(value, list):
            return _whole(value[layer]) if layer < len(value) else 0
        return _whole(value) if type(value) is int else default

    def recurrent(self, layer: int) -> bool:
        said = self._value("attention.recurrent_layers")
        if isinstance(said, list) and layer < len(said):
            return bool(said[layer])
        if self.architecture in _EVERY_FOURTH:
            return (layer + 1) % self.number("full_attention_interval", 4) != 0
        return any(name.startswith(_RECURRENT) for name in self.tensors[layer])

    def attention(self, layer: int) -> list[LayerMemory]:
        """The keys and values of a layer; nothing where it has no attention, or uses those of another."""
        if layer >= self.shared_from or not any(name.startswith(_ATTENTION) for name in self.tensors[layer]):
            return []
        window = self.windows.get(layer, 0)
        heads = self.per_layer("attention.head_count_kv", layer, self.per_layer("attention.head_count", layer, 0))
        keys, values = self._head_size("key_length", window), self._head_size("value_length", window)
        if self.number("attention.key_length_mla"):
            # Latent attention keeps one compressed key, of which the values are a part.
            indexer = any(name.startswith("indexer.") for name in self.tensors[layer])
            extra = self.number("attention.indexer.key_length") if indexer else 0
            return [LayerMemory(layer, "latent", heads * keys + extra)]
        return [LayerMemory(layer, "sliding" if window else "full", heads * (keys + values), window=window)]

    def _head_size(self, key: str, window: int) -> int:
        plain = self.number(f"attention.{key}") or self.number("embedding_length") // max(
            1, self.per_layer("attention.head_count", 0, 0) or self.number("attention.head_count")
        )
        return (self.number(f"attention.{key}_swa") or plain) if window else plain

    def _windows(self) -> dict[int, int]:
        """The window of each layer that has one."""
        rule = _WINDOWED.get(self.architecture)
        window = self.number("attention.sliding_window")
        if rule and rule.window and (self._value("attention.sliding_window") is None or self.architecture == "llama4"):
            window = rule.window if self._value("attention.sliding_window") != 0 else 0
        pattern = self._value("attention.sliding_window_pattern")
        if not window or self.architecture in _NEVER_WINDOWED:
            return {}
        if self.architecture in _ALL_WINDOWED:
            return dict.fromkeys(range(self.count), window)
        if isinstance(pattern, list):
            return {layer: window for layer in range(self.count) if layer < len(pattern) and pattern[layer]}
        if rule is None:
            return {}
        period = _whole(pattern) or rule.period
        full = 0 if rule.first else period - 1
        return {layer: window for layer in range(self.count) if layer % period != full}

    def _state(self) -> int:
        """Numbers in the recurrent state of one layer: of its convolution, and of what it has taken in."""
        width, heads = self.number("embedding_length"), self.number("attention.head_count")
        if size := self.number("wkv.head_size"):
            return (self.number("token_shift_count", 2) + size) * width
        if length := self.number("shortconv.l_cache"):
            return width * (length - 1)
        kernel = self.number("ssm.conv_kernel")
        if size := self.number("kda.head_dim"):
            return (3 * (kernel - 1 if kernel else 3) + size) * heads * size
        if self.architecture == "minimax-01":
            size = self._head_size("key_length", 0)
            return size * size * heads
        inner, state = self.number("ssm.inner_size"), self.number("ssm.state_size")
        return max(0, kernel - 1) * (inner + 2 * self.number("ssm.group_count") * state) + state * inner

    def _value(self, key: str) -> Any:
        return self.model.metadata.get(f"{self.architecture}.{key}")


def _tensors_by_layer(model: ModelFile, count: int) -> Sequence[list[str]]:
    """The names of each layer's tensors, without their "blk.N."."""
    found: list[list[str]] = [[] for _ in range(count)]
    for tensor in model.tensors:
        head, _, rest = tensor.name.partition(".")
        number, _, name = rest.partition(".")
        if head == "blk" and number.isdecimal() and len(number) < 6 and int(number) < count:
            found[int(number)].append(name)
    return found


def _whole(value: Any) -> int:
    """A positive whole number; 0 for all else."""
    return value if type(value) is int and value > 0 else 0
