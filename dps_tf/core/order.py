"""The order of training examples: which examples are in the batch of a step.

Every epoch is a new permutation of the training set, and batches straddle epochs, so
each batch is full (as in Lee et al. 2021, published code). The permutation is a keyed
Feistel network with cycle walking over 32-bit integers (Black and Rogaway 2002,
'Ciphers with arbitrary finite domains'). So any step's batch needs none of the steps
before it, and the order does not depend on the version of a random generator.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6  # Four suffice for indistinguishability in theory; six cost nothing here.
_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads the round numbers over the keys.

_BLOCK = 8192
"""Positions of a block of the order that is computed at once and kept."""

Words = NDArray[np.uint32]


def examples_at(
    first_step: int, steps: int, seed: int, examples: int, batch_size: int
) -> NDArray[np.int32]:
    """Returns int32 [steps, batch_size]: the training examples of consecutive steps.

    `first_step`: updates made before the first of these batches; `seed`: in [0, 2**63);
    values lie in [0, examples). A batch may exceed the training set.
    """
    start, count = first_step * batch_size, steps * batch_size
    if not 0 < count < _BLOCK:
        order = _order(start, count, seed, examples)
    else:
        # Turns of a few steps, and cells that differ in the batch size, share blocks:
        # NumPy would take longer than the steps.
        first, last = start // _BLOCK, (start + count - 1) // _BLOCK
        blocks = [_block(number, seed, examples) for number in range(first, last + 1)]
        order = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        order = order[start - first * _BLOCK :][:count]
    return order.reshape(steps, batch_size)


def _order(start: int, count: int, seed: int, examples: int) -> NDArray[np.int32]:
    """Returns int32 [count]: the training examples at consecutive positions."""
    if not count:
        return np.empty([0], np.int32)
    position = np.arange(start, start + count, dtype=np.int64)
    epoch, within = np.divmod(position, examples)
    order = _permute(within.astype(np.uint32), epoch.astype(np.uint32), seed, examples)
    return order.astype(np.int32)


@functools.lru_cache(maxsize=1024)
def _block(number: int, seed: int, examples: int) -> NDArray[np.int32]:
    order = _order(number * _BLOCK, _BLOCK, seed, examples)
    order.flags.writeable = False
    return order


def _mix(x: Words) -> Words:
    """Returns a bijective scrambling of 32-bit words ('lowbias32' constants)."""
    x = x ^ (x >> np.uint32(16))
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def _round_keys(epoch: Words, seed: int) -> list[Words]:
    """Returns one key per round for each element's epoch."""
    low, high = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
    keys = []
    for number in range(_ROUNDS):
        word = np.array([(int(low) + number * _GOLDEN) & 0xFFFFFFFF], np.uint32)
        keys.append(_mix(_mix(_mix(word) ^ high) ^ epoch))
    return keys


def _permute(x: Words, epoch: Words, seed: int, examples: int) -> Words:
    """Returns the image of each x < examples under its epoch's permutation."""
    bits = max(2, (examples - 1).bit_length())
    # Few distinct epochs share a batch: derive keys once for each of them.
    epochs = np.arange(epoch[0], int(epoch[-1]) + 1, dtype=np.uint32)
    which = epoch - epoch[0]
    keys = [key[which] for key in _round_keys(epochs, seed)]
    y = _feistel(x, keys, bits)
    outside = np.flatnonzero(y >= examples)
    # Cycle walking: the domain is less than twice the set, so each pass at least
    # halves what is outside, on average.
    while outside.size:
        y[outside] = _feistel(y[outside], [key[outside] for key in keys], bits)
        outside = outside[y[outside] >= examples]
    return y


def _feistel(x: Words, keys: list[Words], bits: int) -> Words:
    """Returns a keyed bijection of [0, 2**bits); halves may differ by one bit."""
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = x >> np.uint32(right_bits), x & np.uint32((1 << right_bits) - 1)
    for key in keys:
        scrambled = _mix(right + key) & np.uint32((1 << left_bits) - 1)
        left, right = right, left ^ scrambled
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint32(right_bits)) | right
