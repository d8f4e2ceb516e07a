"""A workload is what is trained and what it has to reach, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from dps_tf.core.cell import checked_name
from dps_tf.core.errors import UserError, check_keys, check_known, check_whole
from dps_tf.core.evaluation_steps import EvaluationSchedule
from dps_tf.core.goal import Goal
from dps_tf.core.registry import SHARE, Argument, Reads, check_names, resolve
from dps_tf.core.space import SEQUENCES, Space, points

QUASI_RANDOM = "quasi_random"
"""The oracle that draws all points before the first trial, which a race needs."""

DIVISION = (
    "split",
    "split_seed",
    "validation_examples",
    "test",
    "test_examples",
    "training_examples",
)
"""The fields of a workload that say how its data set is divided."""
_MAPPINGS = (
    "fixed",
    "oracle_arguments",
    "dataset_arguments",
    "network_arguments",
    "objective_arguments",
)


@dataclass(frozen=True)
class StepsInExamples:
    """A number of steps at each batch size.

    It is either one number for all, or a number of examples that is divided by the
    batch size and kept within [minimum, maximum] steps: fewer for larger batches.

    >>> StepsInExamples(examples=1000, minimum=20).steps_at(10)
    100

    Attributes:
        steps: the number at every batch size, or None.
        examples: number of examples, or None if `steps` is given.
        minimum: fewest steps, with `examples`.
        maximum: most steps, with `examples`.
    """

    steps: int | None = None
    examples: int | None = None
    minimum: int = 1
    maximum: int | None = None
    kind: ClassVar[str] = "step budget"
    """Name of the number in messages."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.examples is None):
            raise UserError(
                f"the {self.kind} needs exactly one of steps and examples: it has "
                f"steps={self.steps!r} and examples={self.examples!r}."
            )
        for name in ("steps", "examples", "minimum", "maximum"):
            value = getattr(self, name)
            if value is not None or name == "minimum":
                check_whole(f"{self.kind}'s {name}", value)
        if self.maximum is not None and self.maximum < self.minimum:
            raise UserError(
                f"the {self.kind}'s maximum {self.maximum} is below its minimum "
                f"{self.minimum}: exchange them."
            )

    def steps_at(self, batch_size: int) -> int:
        """Returns the number of steps of a batch size."""
        if self.steps is not None:
            return self.steps
        assert self.examples is not None
        steps = max(self.minimum, self.examples // batch_size)
        return min(steps, self.maximum or steps)


class EvaluationInterval(StepsInExamples):
    """Steps between evaluations, as a function of the batch size."""

    kind: ClassVar[str] = "evaluation interval"

    def at(self, batch_size: int) -> EvaluationSchedule:
        """Returns the schedule of a batch size."""
        return EvaluationSchedule(self.steps_at(batch_size))


@dataclass(frozen=True)
class Workload:
    """Data set, network and optimizer family, with goal, space and budget.

    Names are looked up in the registries of `data`, `models`, `objectives` and `optim`.

    Attributes:
        name: name of data set and network together; part of paths.
        dataset: name in the data registry.
        network: name in the model registry.
        optimizer: name in the optimizer registry; part of paths.
        goal: goal of a trial.
        space: tuned metaparameters in the order of their declaration.
        points: N, number of trials (or feasible trials) of a study.
        step_budget: number of steps that a trial may run.
        evaluation_interval: steps between evaluations.
        fixed: metaparameters that are set and not tuned.
        explicit_points: points to run instead of a search.
        sequence: `sobol`, or `lee2021` for the published points.
        count: whether N counts `all` trials (Lee et al.) or `feasible` ones (Shallue
            et al.).
        max_draws: largest number of points drawn under `feasible`; None is 10 N.
        learning_rate_schedule: name in the schedule registry.
        split: `seeded`, `first` or `last` of the file, `lee2021` for the published
            split, or `given` for the validation set that the source has.
        split_seed: seed of `seeded`, `first` and `last`.
        validation_examples: size of the validation split; None is the data set's own
            number, and a tenth with the split `lee2021`.
        test: `given` for the test set that the source has, `carved` for examples of
            the same split, or `none`, which reads no test set.
        test_examples: size of a carved test set; None is as many as for validation.
        training_examples: size of a random subset to train on; None is all. Subsets of
            one split are nested, and all have the validation split of the whole set.
        order: `per_trial`, or `shared` for one order of examples for all trials of a
            batch size (Lee et al.).
        oracle: `quasi_random`, or the dotted name of a keras-tuner oracle class, which
            then chooses one trial after another.
        oracle_arguments: keywords of that class.
        dataset_arguments: keywords of the data set's loader.
        network_arguments: keywords of the network's builder.
        objective: name in the registry of objectives: loss and metrics.
        objective_arguments: keywords of the objective, and `metrics`: names of
            registered metrics besides its own.
    """

    name: str
    dataset: str
    network: str
    optimizer: str
    goal: Goal
    space: Space
    points: int
    step_budget: int
    evaluation_interval: EvaluationInterval
    fixed: Mapping[str, float] = field(default_factory=dict)
    explicit_points: tuple[Mapping[str, float], ...] = ()
    sequence: str = "sobol"
    count: str = "all"
    max_draws: int | None = None
    learning_rate_schedule: str = "constant"
    split: str = "seeded"
    split_seed: int = 0
    validation_examples: int | None = None
    order: str = "per_trial"
    oracle: str = QUASI_RANDOM
    oracle_arguments: Mapping[str, Any] = field(default_factory=dict)
    dataset_arguments: Mapping[str, Any] = field(default_factory=dict)
    network_arguments: Mapping[str, Any] = field(default_factory=dict)
    test: str = "none"
    test_examples: int | None = None
    objective: str = "softmax_cross_entropy"
    objective_arguments: Mapping[str, Any] = field(default_factory=dict)
    training_examples: int | None = None

    def __post_init__(self) -> None:
        checked_name("workload", self.name)
        checked_name("optimizer", self.optimizer)
        for name in _MAPPINGS:
            if not isinstance(value := getattr(self, name), Mapping):
                raise UserError(
                    f"workload.{name} is {value!r}; it must be a dictionary, such as "
                    "{'width': 64}."
                )
            check_keys(f"workload.{name}", value)
        check_known("sequence", self.sequence, SEQUENCES)
        check_known("count", self.count, ("all", "feasible"))
        check_known("order", self.order, ("per_trial", "shared"))
        check_known("test", self.test, ("none", "given", "carved"))
        check_whole("points", self.points)
        check_whole("step_budget", self.step_budget)
        check_whole("split_seed", self.split_seed, 0)
        for name in (
            "max_draws",
            "validation_examples",
            "test_examples",
            "training_examples",
        ):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        if self.test_examples is not None and self.test != "carved":
            raise UserError(
                f"test_examples is {self.test_examples} and test is {self.test!r}: "
                "test must be 'carved', as the size of a given set is given too."
            )
        self._check_not_fixed(self.space.names)
        if self.explicit_points:
            self._check_explicit_points()

    def _check_not_fixed(self, tuned: Iterable[str]) -> None:
        both = sorted(set(self.fixed).intersection(tuned))
        if both:
            raise UserError(
                f"{', '.join(both)} of {self.name} is both tuned and fixed: remove it "
                "from fixed, or from the space or the points."
            )

    def _check_explicit_points(self) -> None:
        if self.space.names:
            raise UserError(
                f"{self.name} has a space and explicit points: give one of them."
            )
        if len(self.explicit_points) != self.points or self.count == "feasible":
            raise UserError(
                f"{self.name} has {len(self.explicit_points)} explicit points: points "
                f"must be that number, not {self.points}, and count must be 'all'."
            )

    def at(self, batch_size: int) -> Workload:
        """Returns this workload, which every batch size has; see `WorkloadFamily`."""
        return self

    @property
    def metaparameters(self) -> tuple[str, ...]:
        """Names of all metaparameters: tuned, fixed or in an explicit point."""
        points = [name for point in self.explicit_points for name in point]
        return tuple(dict.fromkeys([*self.space.names, *self.fixed, *points]))

    @property
    def depends_on_budget(self) -> bool:
        """Whether a length is a share of the step budget, so that this may not grow."""
        return any(name.endswith(_SHARE) for name in self.metaparameters)

    def check_metaparameters(self, reads: Reads) -> None:
        """Raises UserError unless every point has just the metaparameters in `reads`.

        `reads`: metaparameters of the optimizer, its schedule and the objective.
        """
        owner = f"{self.optimizer} with the {self.learning_rate_schedule} schedule"
        reads = with_shares(reads, self.metaparameters)
        for point in self.explicit_points:
            # Not when a workload is made, as studies from before can still be read.
            self._check_not_fixed(point)
            resolve(owner, reads, {**self.fixed, **point})
        if not self.explicit_points:
            check_names(owner, reads, [*self.space.names, *self.fixed])
            self.space.check_ranges(owner, reads)
            fixed = {name: reads[name] for name in self.fixed}
            resolve(owner, fixed, self.fixed)

    @property
    def is_adaptive(self) -> bool:
        """Whether an oracle chooses a point only after the trials before it."""
        return self.oracle != QUASI_RANDOM

    def draw(self, seed: int, count: int) -> list[dict[str, float]]:
        """Returns the metaparameters of the first `count` trials, fixed ones too."""
        if self.explicit_points:
            drawn = [dict(point) for point in self.explicit_points[:count]]
        else:
            drawn = points(self.space, self.sequence, seed, count)
        return [{**self.fixed, **point} for point in drawn]

    def to_json(self) -> dict[str, Any]:
        """Returns the workload as JSON; the space is a list, its order matters."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["goal"] = self.goal.to_json()
        values["space"] = [[k, *v] for k, v in self.space.to_json().items()]
        values["evaluation_interval"] = asdict(self.evaluation_interval)
        for name in _MAPPINGS:
            values[name] = dict(values[name])
        values["explicit_points"] = [dict(point) for point in self.explicit_points]
        return values

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Workload:
        """Returns the workload that `to_json` described."""
        values = dict(value)
        values["goal"] = Goal.from_json(values["goal"])
        values["space"] = Space.from_dict({k: v for k, *v in values["space"]})
        values["evaluation_interval"] = EvaluationInterval(
            **values["evaluation_interval"]
        )
        values["explicit_points"] = tuple(values["explicit_points"])
        return cls(**values)


_SHARE, _STEPS = "_share", "_steps"


def with_shares(reads: Reads, given: Iterable[str]) -> Reads:
    """Returns the arguments that are read, with lengths as shares of the step budget.

    `decay_share` stands for `decay_steps`: where it is given, it is read instead.
    """
    with_given = dict(reads)
    for name in given:
        steps = name.removesuffix(_SHARE) + _STEPS
        if name.endswith(_SHARE) and name not in reads and steps in reads:
            with_given.pop(steps, None)
            with_given[name] = Argument(range=SHARE)
    return with_given


def lengths_in_steps(
    point: Mapping[str, float], reads: Reads, step_budget: int | None
) -> dict[str, float]:
    """Returns a point with all lengths in steps; UserError for an impossible share."""
    in_steps = {}
    shares = with_shares(reads, point)
    for name, value in point.items():
        if name in reads or name not in shares:
            in_steps[name] = value
            continue
        if step_budget is None:
            raise UserError(f"{name} is a share of a step budget, and none is given")
        steps = name.removesuffix(_SHARE) + _STEPS
        if steps in point:
            raise UserError(f"{name} and {steps} are the same length: give one of them")
        resolve("the schedule", {name: shares[name]}, {name: value})
        in_steps[steps] = value * step_budget
    return in_steps
