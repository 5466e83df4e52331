"""Task presets: named defaults of sampling.

Each value comes from the first of these that says it:

    the request     its own fields, then the preset it names. Clients that keep settings with a conversation lay the
                    request over them (`Sampling.over`) and send the sum
    the model       its card: what its authors recommend
    the settings    `temperature`, `top_p` and `top_k`, where they are set, then `preset`
"""

from __future__ import annotations

from typing import Literal, get_args

from edgellm.contracts.request import Sampling
from edgellm.errors import InvalidRequest

PresetName = Literal["chat", "code", "maths", "creative", "strict"]
NAMES: tuple[PresetName, ...] = get_args(PresetName)
TOP_K = 50

PRESETS: dict[str, Sampling] = {
    "chat": Sampling(temperature=0.7, top_p=0.9, top_k=TOP_K),
    "code": Sampling(temperature=0.0, top_p=1.0, top_k=TOP_K),
    "maths": Sampling(temperature=0.0, top_p=1.0, top_k=TOP_K),
    "creative": Sampling(temperature=1.0, top_p=0.95, top_k=TOP_K),
    "strict": Sampling(temperature=0.3, top_p=0.9, top_k=TOP_K),  # for answers of a given form
}


def preset(name: str | None) -> Sampling:
    """What a preset says; nothing for None. Raises InvalidRequest for an unknown name, with those that are known."""
    if name is None:
        return Sampling()
    if name not in PRESETS:
        raise InvalidRequest(
            f"there is no preset of that name; there are {', '.join(NAMES)}",
            hint="name one of them, or leave preset out",
            param="preset",
        )
    return PRESETS[name]
