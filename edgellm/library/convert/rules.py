"""How an architecture is declared: which tensors it has under which names, and what becomes of them.

A rule names a tensor as its authors do and as GGUF does; "{}" is the layer, "{e}" the expert. `shape` gives the
source's dimensions by letter, slowest first, with sizes the architecture computes from config.json: so a folder whose
weights do not fit its config is refused by the name of the tensor, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from edgellm.library.convert.config import Config
from edgellm.library.convert.weights import Weight, of_floats

Sizes = Mapping[str, int]
Change = Callable[[Weight, Config], Weight]


def as_is(weight: Weight, _config: Config) -> Weight:
    return weight


def one_more(weight: Weight, _config: Config) -> Weight:
    """Norms stored as their difference from one."""
    return of_floats(weight.floats() + 1)


def paired(heads: str) -> Change:
    """Rows of each head from halves (x, y, x', y' apart by half a head) to neighbours, as GGML's rope of this
    architecture turns them. `heads` is the key of config.json that counts them.
    """

    def change(weight: Weight, config: Config) -> Weight:
        count = config.whole(heads, config.whole("num_attention_heads"))
        rows, *rest = weight.parts[0].shape
        return weight.map(
            lambda part: part.reshape(count, 2, rows // count // 2, *rest).swapaxes(1, 2), reshaped=(rows, *rest)
        )

    return change


def half(which: int, axis: int) -> Change:
    """The first (0) or second (1) half along an axis."""

    def change(weight: Weight, _config: Config) -> Weight:
        def cut(part: Any) -> Any:
            size = part.shape[axis] // 2
            return part[(slice(None),) * axis + (slice(which * size, (which + 1) * size),)]

        return weight.map(cut)

    return change


class Rule(NamedTuple):
    """One tensor. The first rule of a target whose source is there applies."""

    source: str
    target: str
    shape: str  # letters of `Architecture.sizes`, with + and a factor before a letter: "q+2k d"
    change: Change = as_is
    optional: bool = False
    exact: bool = False  # stays F32 whatever the file's type

    @property
    def per_layer(self) -> bool:
        return "{}" in self.target

    @property
    def per_expert(self) -> bool:
        return "{e}" in self.source


class Architecture(NamedTuple):
    """A family as GGUF knows it.

    classes   values of config.json's `architectures` that mean it
    sizes     its dimensions by letter, from config.json; "layers" and, for a mixture, "experts" among them
    metadata  GGUF keys without the architecture's own prefix
    extra     tensors that are computed, not stored
    ignored   sources that play no part in inference
    renames   (pattern, replacement) applied to source names before they are matched
    notes     what of the original the converted model does not do, in words for the user
    """

    name: str
    classes: tuple[str, ...]
    sizes: Callable[[Config], dict[str, int]]
    metadata: Callable[[Config], dict[str, Any]]
    rules: tuple[Rule, ...]
    extra: Callable[[Config], dict[str, Weight]] = lambda _config: {}
    ignored: str = r"(?!)"
    renames: tuple[tuple[str, str], ...] = ()
    notes: Callable[[Config], list[str]] = lambda _config: []
    embeds: bool = False  # makes embeddings, not text

    def source_name(self, stored: str) -> str:
        """A stored tensor's name as the rules spell it."""
        for pattern, replacement in self.renames:
            stored = re.sub(pattern, replacement, stored)
        return stored


def layer_rules(*rules: Rule, source: str = "model.layers.{}.", target: str = "blk.{}.") -> tuple[Rule, ...]:
    """Rules of one layer, their names completed."""
    return tuple(rule._replace(source=source + rule.source, target=target + rule.target) for rule in rules)


def dimensions(shape: str, sizes: Sizes) -> tuple[int, ...]:
    """ "q+2k d" in numbers."""
    return tuple(
        sum(int(factor or 1) * sizes[letter] for factor, letter in re.findall(r"(\d*)([a-z]\w*)", word))
        for word in shape.split()
    )
