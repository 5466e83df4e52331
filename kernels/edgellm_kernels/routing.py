"""How a mixture of experts chooses, as a model's header describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RouterSpec:
    """Which experts a token goes to, and with what weights.

    top             experts of a token
    score           of an expert: "softmax" over all; "sigmoid" of its own; "softmax_top": over those that are chosen
    renormalise     weights are divided by their sum
    scale           and multiplied by this
    groups          experts stand in so many groups, of which the best `groups_used` are considered. A group is as good
                    as its two best experts together: DeepSeek-V3's way, and llama.cpp's for V2 as well, whose authors
                    took the best alone. A file gives the same text on every engine.
    """

    top: int
    score: Literal["softmax", "sigmoid", "softmax_top"] = "softmax"
    renormalise: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1

    def __post_init__(self) -> None:
        if self.top < 1 or not 1 <= self.groups_used <= self.groups:
            raise ValueError(f"{self.top} experts from {self.groups_used} of {self.groups} groups cannot be chosen")
