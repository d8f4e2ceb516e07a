"""The sparsity methods by name: what kind each is, and which arguments it reads.

`one_shot`: scores that do not depend on the sparsity. `iterative`: rounds of scoring
and selecting that end at one sparsity. `scheduled`: masks that tfmot moves during
training (`dps_tf.sparsity.tfmot`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dps_tf.core.errors import UserError, near_matches

ONE_SHOT, ITERATIVE, SCHEDULED = "one_shot", "iterative", "scheduled"
ROUND_EXAMPLES = 5_000  # this package's choice; published codes take a batch or a few


@dataclass(frozen=True)
class Method:
    """What is known of a sparsity method before it runs.

    Attributes:
        name: as in gin files and tables.
        kind: `one_shot`, `iterative` or `scheduled`.
        reads_data: whether its scores read training examples.
        examples: how many (per round) unless told; 0 is all of them.
        arguments: names and defaults of what `Pruning.arguments` may hold.
    """

    name: str
    kind: str
    reads_data: bool = False
    examples: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all arguments, defaults filled in; UserError for unknown names.

        Arguments for one method only stand under its name, so that a sweep over several
        methods can have them: {"force": {"rounds": 20}, "grasp": {"per_class": 5}}.
        """
        own = {}
        for name, value in arguments.items():
            if not isinstance(value, Mapping):
                own[name] = value
            elif method(name) is self:
                own.update(value)
        for name in own:
            if name not in self.arguments:
                raise UserError(
                    f"sparsity method {self.name!r} takes no argument {name!r}: "
                    f"{near_matches(name, self.arguments)}"
                )
        resolved = {**self.arguments, **own}
        for name, value in resolved.items():
            _check(self.name, name, value)
        return resolved


_METHODS = {
    method.name: method
    for method in (
        Method("snip", ONE_SHOT, reads_data=True),
        # Ten examples a class, temperature 200: published code of Wang et al. 2020.
        Method("grasp", ONE_SHOT, True, 0, {"temperature": 200.0, "per_class": 10}),
        Method("magnitude", ONE_SHOT),
        Method("random", ONE_SHOT),
        # Rounds: Tanaka et al. 2020, section 5.
        Method("synflow", ITERATIVE, arguments={"rounds": 100}),
        # Five halvings of the distance from 0.5: published code of SNIP-it.
        Method("iterative_snip", ITERATIVE, True, ROUND_EXAMPLES, {"halvings": 5}),
        # Rounds: default of the published code of de Jorge et al. 2021.
        Method("force", ITERATIVE, True, ROUND_EXAMPLES, {"rounds": 10}),
        # Steps as tfmot counts them: the first update is step 1. Its defaults.
        Method(
            "tfmot_constant",
            SCHEDULED,
            arguments={"begin_step": 0, "end_step": -1, "frequency": 100},
        ),
        Method(
            "tfmot_polynomial",
            SCHEDULED,
            arguments={
                "begin_step": 0,
                "end_step": None,
                "frequency": 100,
                "initial_sparsity": 0.0,
                "power": 3,
            },
        ),
    )
}


def names() -> tuple[str, ...]:
    """Returns the names that `method` knows, in alphabetical order."""
    return tuple(sorted(_METHODS))


def method(name: str) -> Method:
    """Returns a method; UserError with near matches for an unknown name."""
    if name not in _METHODS:
        raise UserError(
            f"sparsity method {name!r} is unknown: {near_matches(name, _METHODS)}"
        )
    return _METHODS[name]


def _check(owner: str, name: str, value: Any) -> None:
    allowed, least = "a whole number, at least 1", 1
    if name in ("temperature", "power"):
        if _is_number(value) and value > 0:
            return
        allowed = "a number above 0"
    elif name == "initial_sparsity":
        if _is_number(value) and 0 <= value < 1:
            return
        allowed = "a number in [0, 1)"
    else:
        if name == "begin_step":
            allowed, least = "a whole number, at least 0", 0
        if name == "end_step":
            allowed, least = "the step at which pruning ends (-1 never)", -1
        if isinstance(value, int) and _is_number(value) and value >= least:
            return
    raise UserError(
        f"argument {name} of sparsity method {owner!r} must be {allowed}, not {value!r}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
