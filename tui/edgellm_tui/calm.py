"""No pauses while text comes or is typed: the oldest garbage is collected when nothing happens."""

from __future__ import annotations

import gc

IDLE_S = 3.0  # after an answer, and after what was typed since
_NEVER = 1 << 30


def settle() -> None:
    """What is there at the start stays for good: collections need not look at it again.

    Collections of all generations stop the screen for a tenth of a second and, after long answers, for most of one;
    from now on only `tidy` makes them.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


def tidy() -> None:
    """Collect what answers left behind."""
    gc.collect()
