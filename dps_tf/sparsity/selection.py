"""Selections choose the entries that stay by their scores: pure functions, by name.

Rule for ties: of entries with equal scores, the one with the lower flat position is
kept first. Positions run through the variables in the order given, and through each in
C order. So, with the same scores, what `global` and `layer` keep at a higher sparsity
is a part of what they keep at a lower one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf.core import Argument, Range, Reads, Registry, UserError, arguments_of
from dps_tf.sparsity.prunable import KERNEL, VariableRole


@dataclass(frozen=True)
class Candidates:
    """The entries among which a selection chooses.

    Attributes:
        scores: one array per prunable variable; the largest entries are to be kept.
        roles: role and layer of each variable.
        allowed: 0/1 arrays, the entries that may be kept; None for all of them.
    """

    scores: Sequence[np.ndarray]
    roles: Sequence[VariableRole]
    allowed: Sequence[np.ndarray] | None = None


Selection = Callable[..., list[np.ndarray]]
"""(candidates, sparsity, **arguments) -> one 0/1 array per variable."""
SELECTIONS: Registry[Selection] = Registry("selection")


def register_selection(
    name: str, selection: Selection, reads: Reads | None = None
) -> None:
    """Makes `pruning.scope = name` choose entries by a function, in this process.

    Registering the same function again changes nothing; another one under a taken name
    is refused.

    Args:
        name: as in gin files.
        selection: function of `Candidates`, the sparsity to reach, and arguments of its
            own by keyword, that returns one 0/1 array per variable. It has to be pure,
            and to raise UserError for a sparsity that it cannot reach.
        reads: these arguments, as `pruning.arguments` may set them; None takes them
            from the signature.

    Examples:
        >>> import dps_tf
        >>> def positive(candidates, sparsity):
        ...     del sparsity  # as many are kept as there are
        ...     return [scores > 0 for scores in candidates.scores]
        >>> dps_tf.register_selection("positive", positive)
    """
    arguments = arguments_of(selection, 2) if reads is None else reads
    SELECTIONS.register(name, selection, arguments)


def choose(
    name: str, candidates: Candidates, sparsity: float, arguments: Mapping[str, Any]
) -> list[np.ndarray]:
    """Returns the float32 masks of a registered selection.

    Raises:
        UserError: a score is NaN, what is returned are no masks, or nothing at all
            would be kept.
    """
    _check_scores(candidates.scores)
    found = SELECTIONS[name](candidates, sparsity, **arguments)
    masks = [np.asarray(m, np.float32) for m in (() if found is None else found)]
    shapes = [np.shape(score) for score in candidates.scores]
    are_shaped = [mask.shape for mask in masks] == shapes
    if not are_shaped or not all(np.isin(mask, (0, 1)).all() for mask in masks):
        raise UserError(
            f"selection {name!r} must return an array of zeros and ones for each of "
            f"{len(shapes)} scores, of shapes {shapes}: change what it returns."
        )
    _check_kept(masks, sparsity)
    return masks


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
        scores: one array per prunable variable.
        sparsity: fraction of the entries to remove, in [0, 1).
        layers: layer of each variable, to rank inside each layer; None ranks the
            entries of all variables together.
        among: masks of the entries that may be kept, at least as many as will be; None
            for all.
    """
    labels = [0] * len(scores) if layers is None else list(layers)
    masks = [np.zeros(np.shape(score), np.float32) for score in scores]
    for label in dict.fromkeys(labels):
        members = [i for i, layer in enumerate(labels) if layer == label]
        allowed = None if among is None else [among[i] for i in members]
        flat = _select_flat([scores[i] for i in members], sparsity, allowed)
        start = 0
        for i in members:
            own = flat[start : start + masks[i].size]
            masks[i] = own.reshape(masks[i].shape).astype(np.float32)
            start += own.size
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


def _check_scores(scores: Sequence[np.ndarray]) -> None:
    for position, score in enumerate(scores):
        if np.asarray(score).dtype.kind not in "biuf":
            raise UserError(
                f"scores of prunable variable {position} are {np.asarray(score).dtype}:"
                " they have to be real numbers, for example absolute values."
            )
        if np.isnan(score).any():
            raise UserError(
                f"scores of prunable variable {position} are NaN: the loss has no "
                "gradient at this initial point; check the data and the network"
            )


def _check_kept(masks: Sequence[np.ndarray], sparsity: float) -> None:
    if masks and not any(mask.any() for mask in masks):
        entries = sum(mask.size for mask in masks)
        raise UserError(
            f"sparsity {sparsity!r} keeps none of {entries} prunable parameters: "
            "choose a lower one"
        )


def _whole_network(candidates: Candidates, sparsity: float) -> list[np.ndarray]:
    """Ranks the entries of all variables together."""
    return select(candidates.scores, sparsity, among=candidates.allowed)


def _each_layer(candidates: Candidates, sparsity: float) -> list[np.ndarray]:
    """Ranks the entries inside each layer."""
    layers = [role.layer for role in candidates.roles]
    return select(candidates.scores, sparsity, layers, candidates.allowed)


def _n_of_m(candidates: Candidates, sparsity: float, m: int) -> list[np.ndarray]:
    """Keeps n = m (1 - sparsity) of each m entries along the input axis of a kernel.

    The input axis is what one output unit sees: all axes but the last, in C order. So
    blocks of a convolution run along its input channels where m divides their number. A
    shorter block at the end, of r entries, keeps ceil(r n / m).

    Source: Mishra et al. 2021 (arXiv 2104.08378), where 2 of 4 are kept.
    """
    _require_kernels(candidates, "n_of_m")
    n = round(m * (1 - sparsity))
    if not 1 <= n <= m or abs(n - m * (1 - sparsity)) > 1e-6:
        possible = ", ".join(f"{1 - kept / m:.4g}" for kept in range(m - 1, 0, -1))
        raise UserError(
            f"selection 'n_of_m' keeps whole numbers of {m} entries, so sparsity "
            f"{sparsity!r} cannot be reached: choose among {possible}, or another m"
        )
    masks = []
    for i, score in enumerate(candidates.scores):
        allowed = None if candidates.allowed is None else candidates.allowed[i]
        masks.append(_best_of_blocks(score, allowed, n, m))
    return masks


def _best_of_blocks(
    score: np.ndarray, allowed: np.ndarray | None, n: int, m: int
) -> np.ndarray:
    """Returns the mask of the best n of each m entries of each column."""
    columns = score.reshape(-1, score.shape[-1])
    fan_in, outputs = columns.shape
    padding = ((0, -fan_in % m), (0, 0))
    may_stay = np.ones(columns.shape, bool)
    if allowed is not None:
        may_stay = allowed.reshape(columns.shape) > 0
    blocks = np.pad(columns, padding).reshape(-1, m, outputs)
    excluded = np.pad(~may_stay, padding, constant_values=True)
    # Sorted by exclusion first, then by score; equal scores stay in their order.
    order = np.lexsort((-blocks, excluded.reshape(blocks.shape)), axis=1)
    ranks = np.argsort(order, axis=1)
    kept = np.full((len(blocks), 1, 1), n)
    if fan_in % m:
        kept[-1] = -(-(fan_in % m) * n // m)
    return (ranks < kept).reshape(-1, outputs)[:fan_in].reshape(score.shape)


def _filters(candidates: Candidates, sparsity: float) -> list[np.ndarray]:
    """Keeps or removes whole filters: all entries of one output unit of a kernel.

    An output of a depthwise kernel [height, width, channels, multiplier] is one of
    channels x multiplier. A filter without any entry that may be kept is ranked last.
    Inside each kernel the filters with the largest mean score stay, at least one. The
    last kernel stays whole, because its units are the outputs of the network; the
    others lose so much more that the sparsity is reached, up to rounding to filters.

    Source: Li et al. 2017 (arXiv 1608.08710), section 3.1, for magnitudes. Deviation:
    kernels that read a removed channel keep their entries for it.
    """
    _require_kernels(candidates, "filters")
    sizes = [score.size for score in candidates.scores]
    hidden = sum(sizes[:-1])
    share = sparsity * sum(sizes) / hidden if hidden else 1.0
    if share >= 1:
        raise UserError(
            f"selection 'filters' keeps the last kernel whole, which holds "
            f"{sizes[-1]} of {sum(sizes)} entries, so sparsity {sparsity!r} cannot be "
            "reached: choose a lower one"
        )
    masks = [np.ones(score.shape, np.float32) for score in candidates.scores]
    allowed = candidates.allowed or masks
    for i, score in enumerate(candidates.scores[:-1]):
        is_depthwise = candidates.roles[i].name.endswith("depthwise_kernel")
        filters = math.prod(score.shape[-2:]) if is_depthwise else score.shape[-1]
        means = score.reshape(-1, filters).mean(axis=0, dtype=np.float64)
        may_stay = np.reshape(allowed[i], (-1, filters)).any(axis=0)
        kept = max(1, kept_count(filters, share))
        worst = np.lexsort((-means, ~may_stay))[kept:]
        masks[i].reshape(-1, filters)[:, worst] = 0
    return [m * np.asarray(a, np.float32) for m, a in zip(masks, allowed, strict=True)]


def _require_kernels(candidates: Candidates, name: str) -> None:
    """Raises UserError for variables without an input axis."""
    for role in candidates.roles:
        if role.role != KERNEL:
            raise UserError(
                f"selection {name!r} has no meaning for {role.name}: set "
                "pruning.prunable = 'kernels'"
            )


register_selection("global", _whole_network)
register_selection("layer", _each_layer)
register_selection("n_of_m", _n_of_m, {"m": Argument(4, Range(low=2, whole=True))})
register_selection("filters", _filters)
