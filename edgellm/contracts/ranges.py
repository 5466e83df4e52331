"""How much of anything may be asked for: in every dialect of HTTP, on the command line and in the chat."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

MOST: Final = 2**31 - 1  # of anything that is counted
Count = Annotated[int, Meta(ge=1, le=MOST)]
CountOrZero = Annotated[int, Meta(ge=0, le=MOST)]
Token = Annotated[int, Meta(ge=0, le=MOST)]
LookBack = Annotated[int, Meta(ge=-1, le=MOST)]  # tokens; -1: the whole context

Temperature = Annotated[float, Meta(ge=0, le=1e6)]
Share = Annotated[float, Meta(ge=0, le=1)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Repeat = Annotated[float, Meta(ge=0.01, le=100)]  # closer to 0, logits overflow
