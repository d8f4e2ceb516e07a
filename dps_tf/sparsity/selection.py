"""Which entries stay, given scores? Pure functions of arrays.

Rule for ties: of entries with equal scores, the one with the lower flat position is
kept first, positions running through the variables in the order given and through each
in C order. So, with the same scores, what is kept at a higher sparsity is a part of
what is kept at a lower one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from dps_tf.core.errors import UserError


def kept_count(entries: int, sparsity: float) -> int:
    """Returns round(entries (1 - sparsity)), halves to even.

    Source: Lee et al. 2021, published code.

    >>> kept_count(62_346, 0.9)
    6235
    """
    if not 0 <= sparsity < 1:
        raise UserError(
            f"sparsity {sparsity!r} is outside of [0, 1): give the fraction of "
            "parameters to remove, for example 0.9"
        )
    return round(entries * (1 - sparsity))


def select(
    scores: Sequence[np.ndarray],
    sparsity: float,
    layers: Sequence[Hashable] | None = None,
    among: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Returns float32 masks that are 1 at the entries with the largest scores.

    Exactly `kept_count` of the entries are kept: of all together, or of each layer.

    Args:
        scores: one array per prunable variable; the largest are kept.
        sparsity: fraction of the entries to remove, in [0, 1).
        layers: which layer each variable belongs to, for a ranking inside each layer;
            None ranks all entries together.
        among: masks of the entries that may be kept; None for all. They must be at
            least as many as are kept.

    Raises:
        UserError: a score is NaN, or nothing at all would be kept.
    """
    for position, score in enumerate(scores):
        if np.isnan(score).any():
            raise UserError(
                f"scores of prunable variable {position} are NaN: the loss has no "
                "gradient at this initial point; check the data and the network"
            )
    labels = [0] * len(scores) if layers is None else list(layers)
    masks = [np.zeros(np.shape(score), np.float32) for score in scores]
    for label in dict.fromkeys(labels):
        members = [i for i, own in enumerate(labels) if own == label]
        allowed = None if among is None else [among[i] for i in members]
        flat = _select_flat([scores[i] for i in members], sparsity, allowed)
        start = 0
        for i in members:
            own = flat[start : start + masks[i].size]
            masks[i] = own.reshape(masks[i].shape).astype(np.float32)
            start += own.size
    if masks and not any(mask.any() for mask in masks):
        entries = sum(mask.size for mask in masks)
        raise UserError(
            f"sparsity {sparsity!r} keeps none of {entries} prunable parameters: "
            "choose a lower one"
        )
    return masks


def _select_flat(
    scores: Sequence[np.ndarray], sparsity: float, among: Sequence[np.ndarray] | None
) -> np.ndarray:
    """Returns bool [entries] over the flattened scores of one ranking."""
    flat = np.concatenate([np.ravel(score) for score in scores])
    kept = kept_count(flat.size, sparsity)
    if among is not None:
        allowed = np.concatenate([np.ravel(mask) for mask in among]) > 0
        if kept > np.count_nonzero(allowed):
            raise ValueError(
                f"{kept} entries are to be kept, but only "
                f"{np.count_nonzero(allowed)} may be"
            )
        flat = np.where(allowed, flat, -np.inf)
    if kept == 0:
        return np.zeros(flat.size, bool)
    threshold = np.partition(flat, flat.size - kept)[flat.size - kept]
    chosen = flat > threshold
    ties = np.flatnonzero(flat == threshold)
    if among is not None:  # an allowed score may itself be -inf
        ties = ties[np.argsort(~allowed[ties], kind="stable")]
    chosen[ties[: kept - np.count_nonzero(chosen)]] = True
    return chosen
