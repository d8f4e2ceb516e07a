"""Metaparameter spaces, and the points that a study draws from them.

Points are quasi-random, and each is a pure function of (seed, index).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf.core.errors import UserError, check_known
from dps_tf.core.registry import Reads

BOUNDARY = 0.05
"""Share of a range, on its scale, within which a value counts as at its end."""
SCALES = ("log", "reverse_log", "linear", "integer", "discrete")

# Columns of the result tables: a metaparameter of the same name would hide one.
RESERVED = frozenset(
    "workload optimizer sparsity_method seed batch_size sparsity precision goal "
    "steps_to_result bracket_low best_trial trials complete incomplete infeasible "
    "censored failed at_boundary closed steps_bound trial outcome end_step "
    "diverged_step error initial_seed order_seed realised_sparsity layers step "
    "is_bound earliest latest steps_low steps_high finishers_known emptied_layers "
    "infeasible_share lone_winner interval_over_kstar first_evaluation "
    "evaluation_interval step_budget training_examples draws_exhausted".split()
)


def check_metaparameter(name: str) -> None:
    """Raises UserError unless a name can name a column of metaparameters."""
    if not name.isidentifier() or name in RESERVED:
        raise UserError(
            f"metaparameter name {name!r} is not usable: it must be an identifier and "
            "not the name of a result column."
        )


def is_rate(name: str) -> bool:
    """Returns whether a metaparameter is a learning rate, by its name.

    >>> is_rate("base_lr"), is_rate("momentum")
    (True, False)
    """
    return f"_{name}".endswith(("_lr", "learning_rate"))


@dataclass(frozen=True)
class Parameter:
    """One tuned metaparameter and its scale.

    Scales, for u in [0, 1]:
        log:          low (high / low)^u
        reverse_log:  1 - value is log-uniform: 1 - (1 - low)^u (1 - high)^(1 - u), so
                      that large u means small values
        linear:       low + (high - low) u
        integer:      floor(low + (high - low) u)
        discrete:     choices[floor(u len(choices))]

    Source: `scale` of study.json in the public archive of Shallue et al. 2019. Formulas
    and the direction of reverse_log are from the published code of Lee et al. 2021,
    where `int(30000 + 30000 u)` draws the decay steps.

    Attributes:
        name: name that the optimizer reads.
        scale: one of SCALES.
        low: lower end, for all scales but discrete.
        high: upper end.
        choices: the values of a discrete parameter.

    >>> round(Parameter("learning_rate", "log", 1e-4, 1.0).from_unit(0.5), 6)
    0.01
    """

    name: str
    scale: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_metaparameter(self.name)
        check_known(f"scale of {self.name}", self.scale, SCALES)
        problem = self._range_problem()
        if problem:
            raise UserError(f"{self.name} ({self.scale}) {problem}.")

    def _range_problem(self) -> str:
        if self.scale == "discrete":
            return "" if self.choices else "needs at least one choice"
        ends = f"[{self.low!r}, {self.high!r}]"
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return f"has the range {ends}, whose ends must be finite"
        if not self.low < self.high:
            return f"has the range {ends}, whose low end must be below the high end"
        if self.scale == "log" and self.low <= 0:
            return f"has the range {ends}, which must be positive"
        if self.scale == "reverse_log" and self.high >= 1:
            return f"has the range {ends}, which must be below 1"
        if self.scale == "integer" and (self.low % 1 or self.high % 1):
            return f"has the range {ends}, whose ends must be whole numbers"
        return ""

    def from_unit(self, u: float) -> float:
        """Returns the value at u in [0, 1]; integer values are whole floats."""
        if self.scale == "log":
            # Through powers of ten, as the published code draws its points.
            low, high = math.log10(self.low), math.log10(self.high)
            return float(min(max(10 ** (low + (high - low) * u), self.low), self.high))
        if self.scale == "reverse_log":
            low, high = math.log10(1 - self.high), math.log10(1 - self.low)
            value = 1 - 10 ** (low + (high - low) * u)
            return float(min(max(value, self.low), self.high))
        if self.scale == "linear":
            return self.low + (self.high - self.low) * u
        if self.scale == "integer":
            return float(math.floor(self.low + (self.high - self.low) * u))
        return self.choices[min(int(u * len(self.choices)), len(self.choices) - 1)]

    def to_unit(self, value: float) -> float:
        """Returns u in [0, 1] of a value; UserError for a value that is not allowed.

        A discrete value lies in the middle of its part of [0, 1].
        """
        if self.scale == "discrete":
            if value not in self.choices:
                raise UserError(
                    f"{self.name} is {value!r}; it must be one of {self.choices}."
                )
            return (self.choices.index(value) + 0.5) / len(self.choices)
        if not self.low <= value <= self.high:
            raise UserError(
                f"{self.name} is {value!r}, outside of its range "
                f"[{self.low!r}, {self.high!r}]."
            )
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        if self.scale == "reverse_log":
            span = math.log((1 - self.low) / (1 - self.high))
            return math.log((1 - value) / (1 - self.high)) / span
        return (value - self.low) / (self.high - self.low)

    def is_end(self, value: float) -> bool:
        """Returns whether a value lies at an end; see `Space.at_boundary`."""
        if self.scale == "discrete":
            has_inner = len(self.choices) > 2 or is_rate(self.name)
            ends = {min(self.choices), max(self.choices)} - {0.0}
            return len(self.choices) > 1 and has_inner and value in ends
        if not self.low <= value <= self.high:
            return not math.isnan(value)
        return not BOUNDARY < self.to_unit(value) < 1 - BOUNDARY

    def to_json(self) -> list[Any]:
        """Returns `[scale, low, high]`, or `["discrete", choices]`."""
        if self.scale == "discrete":
            return [self.scale, list(self.choices)]
        return [self.scale, self.low, self.high]


@dataclass(frozen=True)
class Space:
    """Tuned metaparameters in the order of their declaration."""

    parameters: tuple[Parameter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of their declaration."""
        return tuple(parameter.name for parameter in self.parameters)

    def check_ranges(self, owner: str, reads: Reads) -> None:
        """Raises UserError for a name that can leave the range in which it is read.

        A range without an end allows that end in the space, as it is hardly ever drawn.
        `owner`: name of the reader in messages.
        """
        for parameter in self.parameters:
            allowed = reads[parameter.name].range
            if allowed is None:
                continue
            if parameter.scale == "discrete":
                within = all(choice in allowed for choice in parameter.choices)
            else:
                within = allowed.encloses(parameter.low, parameter.high)
            if not within:
                raise UserError(
                    f"{parameter.name} is tuned in {parameter.to_json()}, and "
                    f"{owner} reads {allowed}: change the space."
                )

    def from_unit(self, u: Sequence[float]) -> dict[str, float]:
        """Returns the point at u in the unit cube, one coordinate per name."""
        return {
            parameter.name: parameter.from_unit(float(x))
            for parameter, x in zip(self.parameters, u, strict=True)
        }

    def at_boundary(self, point: Mapping[str, float]) -> tuple[str, ...]:
        """Returns the names whose value lies at an end of its range, or outside.

        At an end is within BOUNDARY of it on its scale, or the least or greatest of a
        discrete range. No range goes on below 0, and of two choices only a learning
        rate has ends. Names without a value in `point` do not count.
        """
        return tuple(
            parameter.name
            for parameter in self.parameters
            if parameter.is_end(point.get(parameter.name, math.nan))
        )

    def to_json(self) -> dict[str, list[Any]]:
        """Returns the space as a dictionary, for `from_dict`."""
        return {parameter.name: parameter.to_json() for parameter in self.parameters}

    @classmethod
    def from_dict(cls, space: Mapping[str, Sequence[Any]]) -> Space:
        """Returns the space written as `{name: (scale, low, high)}`.

        A discrete name is written `("discrete", (value, value, ...))`.
        """
        if not isinstance(space, Mapping):
            raise UserError(
                f"the space is {space!r}; it must be a dictionary such as "
                "{'learning_rate': ('log', 1e-4, 1.0)}."
            )
        return cls(tuple(_parameter(name, entry) for name, entry in space.items()))


def _parameter(name: str, entry: Any) -> Parameter:
    try:
        scale, *rest = entry
        if scale == "discrete":
            (choices,) = rest
            return Parameter(name, scale, choices=tuple(map(float, choices)))
        low, high = map(float, rest)
    except UserError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{name} is {entry!r}; it must be (scale, low, high) or "
            "('discrete', (value, ...))."
        ) from error
    return Parameter(name, scale, low, high)


SEQUENCES = ("sobol", "lee2021")

# Direction numbers m of the published points (Burkardt's table), as bits of a 31-bit
# fraction; dimension 1 is the van der Corput sequence.
# dimension: (degree, inner coefficients of the primitive polynomial, initial m)
_LEE2021 = {2: (1, (), (1,)), 3: (2, (1,), (1, 1)), 4: (3, (0, 1), (1, 3, 7))}
_BITS = 31


def points(
    space: Space, sequence: str, seed: int, count: int
) -> list[dict[str, float]]:
    """Returns the first `count` points of a study; point i is the same for every count.

    Args:
        space: the tuned metaparameters in the order of the dimensions.
        sequence: `sobol` is scipy's Sobol sequence, scrambled by `seed`. `lee2021` is
            exactly the published list of Lee et al. 2021, the same for every seed, in
            at most four dimensions: unscrambled Sobol without the origin, with
            Burkardt's direction numbers.
        seed: study seed; 0 is a seed like any other.
        count: number of points, at least 0.
    """
    check_known("sequence", sequence, SEQUENCES)
    dimensions = len(space.parameters)
    if dimensions == 0:
        raise UserError("the space is empty: give at least one tuned metaparameter.")
    if sequence == "lee2021":
        unit = lee2021_unit_points(dimensions, count)
    else:
        unit = _scrambled_sobol(dimensions, seed, count)
    return [space.from_unit(row) for row in unit]


def _scrambled_sobol(dimensions: int, seed: int, count: int) -> np.ndarray:
    """Returns [count, dimensions] in [0, 1)."""
    from scipy.stats import qmc  # it takes a second to load

    rng = np.random.default_rng(seed)
    engine = qmc.Sobol(d=dimensions, scramble=True, rng=rng)
    # One at a time: a draw whose length is no power of two makes scipy warn, and the
    # loss of balance it warns of is the price of a prefix-stable list.
    rows = [engine.random(1)[0] for _ in range(count)]
    return np.asarray(rows, np.float64).reshape(count, dimensions)


def lee2021_unit_points(dimensions: int, count: int) -> np.ndarray:
    """Returns [count, dimensions] in (0, 1): Gray-code Sobol without the origin.

    Source: Lee et al. 2021, published code (`skip=2` of its Sobol routine drops only
    the origin), which has four dimensions at most.
    """
    if not 1 <= dimensions <= 4:
        raise UserError(
            f"sequence 'lee2021' has one to four dimensions, and the space has "
            f"{dimensions}; use 'sobol'."
        )
    directions = [_direction_numbers(j + 1) for j in range(dimensions)]
    state = [0] * dimensions
    rows = np.empty((count, dimensions), np.float64)
    for index in range(count):
        # Position of the lowest zero bit of index: the bit the Gray code flips next.
        bit = ((~index) & (index + 1)).bit_length() - 1
        state = [x ^ v[bit] for x, v in zip(state, directions, strict=True)]
        rows[index] = state
    return rows / 2.0**_BITS


def _direction_numbers(dimension: int) -> list[int]:
    """Returns the _BITS direction numbers of one dimension, as _BITS-bit integers."""
    if dimension == 1:
        return [1 << (_BITS - 1 - i) for i in range(_BITS)]
    degree, inner, initial = _LEE2021[dimension]
    m = list(initial)
    for i in range(degree, _BITS):
        value = m[i - degree] ^ (m[i - degree] << degree)
        for k, coefficient in enumerate(inner, start=1):
            value ^= (m[i - k] << k) * coefficient
        m.append(value)
    return [m[i] << (_BITS - 1 - i) for i in range(_BITS)]
