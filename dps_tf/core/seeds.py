"""Every random draw has a seed made of a study seed, a trial and a purpose."""

from __future__ import annotations

import functools
import hashlib


@functools.lru_cache(maxsize=1 << 12, typed=True)
def derive_seed(study_seed: int, index: int, purpose: str) -> int:
    """Returns the seed in [0, 2**63) for one purpose of one trial.

    It is a pure function of its arguments (SHA-256); 0 is a seed like any other.

    >>> derive_seed(0, 0, "initial point") == derive_seed(0, 0, "order")
    False
    """
    text = f"dps_tf/{study_seed}/{index}/{purpose}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
