"""Counter-based random numbers: the draw for a token depends on (seed, choice, position) and on nothing else.

So the text is the same alone or in a batch, suspended and resumed, with drafts or without.
SplitMix64's finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)
applied to the three counters in turn.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, choice: int, position: int, stream: int = 0) -> float:
    """A number in [0, 1) with 53 random bits. `seed` is taken modulo 2**64; `position` counts generated tokens.

    `stream` tells draws apart that are made for one token: 0 chooses it, others belong to samplers before.
    """
    state = _mix((seed + _GOLDEN) & _MASK)
    state = _mix((state + choice + _GOLDEN) & _MASK)
    state = _mix((state + position + _GOLDEN) & _MASK)
    if stream:
        state = _mix((state + stream + _GOLDEN) & _MASK)
    return (state >> 11) * (1.0 / (1 << 53))
