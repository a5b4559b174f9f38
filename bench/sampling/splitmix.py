"""Counter-based random numbers, shared by every sampler and the order of an epoch.

SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014;
constants of Vigna's public-domain ``splitmix64.c``). These four lines come from no library, because
a library's next version may give other numbers, and a trace must keep its bytes for years.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mix(z: int) -> int:
    """Apply SplitMix64's finaliser, a bijection of the integers below 2^64."""
    z &= _MASK
    z = (z ^ (z >> 30)) * MULTIPLIER_1 & _MASK
    z = (z ^ (z >> 27)) * MULTIPLIER_2 & _MASK
    return z ^ (z >> 31)


def derive(*words: int) -> int:
    """Combine several integers, negative ones too, into one 64-bit key; each affects it."""
    key = 0
    for word in words:
        key = mix(key + GOLDEN + mix(word))
    return key


def stream(key: int, length: int) -> NDArray[np.uint64]:
    """Return the first ``length`` numbers of the stream ``key``: uint64 ``[length]``."""
    z = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MULTIPLIER_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MULTIPLIER_2)
    out: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return out
