"""Progress of a study is one live line on a terminal, and plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dps_tf.core import (
    Nearest,
    Plan,
    RaceRule,
    StudySpecification,
    Trajectory,
    duration,
    steps_left,
)

_LINE_SECONDS = 15.0
"""Seconds between two lines where the output is no terminal."""

_BAR = 10  # characters
_SHORTEST_NAME = 12

_PRUNING_SECONDS = 0.2
"""Seconds between two displays of the progress of scores, as drawing costs time."""


def shortened(name: str, width: int) -> str:
    """Returns a name of at most `width` characters, its middle left out if need be."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


@dataclass(frozen=True)
class Forecast:
    """A forecast is the predicted cost of some cells of a sweep.

    Attributes:
        examples: median number of examples that each cell trains on.
        slot_seconds: 80 % interval of the seconds that all cells take, summed over the
            slots; None where no time is recorded.
    """

    examples: list[float]
    slot_seconds: tuple[float, float] | None


Forecaster = Callable[[Sequence[StudySpecification]], Forecast | None]
"""Predicts the cost of cells from recorded ones; None where there are none."""


def no_forecast(studies: Sequence[StudySpecification]) -> None:
    """Predicts nothing."""


class StudyProgress:
    """One live line per cell on a terminal, plain lines elsewhere.

    Use as a context: the live line goes when it ends, for the result to take its place.

    Args:
        name: name of the cell.
        rule: rule of the race of its study.
        place: place of the cell in the sweep, such as `cell 3 of 9`.
        stream: stream to write to; standard output by default.
        live: whether a terminal gets a live line; a terminal can show one.

    Attributes:
        sweep: predicted cost of this cell and all waiting ones; None without a
            forecast.
    """

    def __init__(
        self,
        name: str,
        rule: RaceRule,
        place: str = "",
        stream: TextIO | None = None,
        *,
        live: bool = True,
    ):
        self.sweep: Forecast | None = None
        self._slots = 1
        self._name = name
        self._place = place
        self._rule = rule
        self._stream = stream or sys.stdout
        self._begun = time.monotonic()
        self._written = self._begun
        self._first_steps: int | None = None
        self._pruning_shown = -_PRUNING_SECONDS
        self._live: Live | None = None
        self._may_be_live = live

    def __enter__(self) -> StudyProgress:
        """Starts the live line, on a terminal."""
        if self._may_be_live and self._stream.isatty():
            console = Console(file=self._stream)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.__enter__()
        self._show(f"{self._label}: starting")
        return self

    @property
    def _label(self) -> str:
        return f"{self._place}, {self._name}" if self._place else self._name

    def __exit__(self, *error: object) -> None:
        """Ends the live line."""
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def prepared(self, done: int, total: int) -> None:
        """Shows how many initial points have been made and pruned."""
        self._show(f"{self._label}: {done} of {total} initial points ready")
        if done == total:
            self._begun = time.monotonic()

    def pruning(self, text: str) -> None:
        """Shows the progress of an initial point's scores, a few times a second."""
        now = time.monotonic()
        if now - self._pruning_shown >= _PRUNING_SECONDS:
            self._pruning_shown = now
            self._show(f"{self._label}: {text}")

    def update(
        self,
        todo: Plan,
        trajectories: Sequence[Trajectory],
        running: int,
        data_wait: float = 0.0,
        nearest: Callable[[], Nearest | None] = lambda: None,
        turns: int = 0,
    ) -> None:
        """Shows the state of the study; in a log at most every _LINE_SECONDS.

        `nearest` returns the evaluation that came nearest to the goal. `turns`: slots
        in which the running trials are; 0 is one per trial.
        """
        self._slots = max(self._slots, turns or running)
        if self._first_steps is None:
            self._first_steps = sum(state.last_step for state in trajectories)
        if self._live is None and not self._is_due:
            return  # Turns of small networks take less time than a sentence.
        steps = sum(state.last_step for state in trajectories)
        elapsed = max(time.monotonic() - self._begun, 1e-3)
        finished = [t.finish_step for t in trajectories if t.finish_step is not None]
        state = _State(
            pending=len(todo.pending),
            prefix=todo.prefix,
            running=running,
            reached=len(finished),
            diverged=sum(t.diverged_step is not None for t in trajectories),
            best=min(finished, default=None),
            steps=steps,
            left=steps_left(todo, trajectories, self._rule),
            rate=(steps - self._first_steps) / elapsed,
            is_bound=len(finished) < self._rule.finishers,
            data_wait=data_wait,
            nearest=nearest(),
            sweep=self._sweep_left,
        )
        if self._live is None:
            self._show(state.sentence(self._label))
        else:
            width = self._live.console.width
            self._show(state.fitted(self._place, self._name, width))

    @property
    def _sweep_left(self) -> str:
        if self.sweep is None or self.sweep.slot_seconds is None:
            return ""
        elapsed = time.monotonic() - self._begun
        low, high = (end / self._slots - elapsed for end in self.sweep.slot_seconds)
        if high <= 0:
            return ", whole sweep later than forecast"
        low = max(0, low)
        return f", whole sweep {duration(low)} to {duration(high)} left (80 %)"

    @property
    def _is_due(self) -> bool:
        """Whether a log gets its next line."""
        return time.monotonic() - self._written >= _LINE_SECONDS

    def _show(self, line: str) -> None:
        if self._live is not None:
            text = Text(line, no_wrap=True, overflow="ellipsis")
            self._live.update(text, refresh=True)
        elif self._is_due:
            self._written = time.monotonic()
            print(line, file=self._stream, flush=True)


@dataclass(frozen=True)
class _State:
    """The state of a study; `left` are steps, `rate` is steps per second."""

    pending: int
    prefix: int
    running: int
    reached: int
    diverged: int
    best: int | None
    steps: int
    left: int
    rate: float
    is_bound: bool
    data_wait: float
    nearest: Nearest | None
    sweep: str

    @property
    def share(self) -> float:
        """Fraction in [0, 1] of the steps that are done; at most `left` remain."""
        return self.steps / max(self.steps + self.left, 1)

    @property
    def _time_left(self) -> str:
        if self.rate <= 0:
            return "starting"
        bound = "at most " if self.is_bound else ""
        return f"{bound}{duration(self.left / self.rate)} left"

    @property
    def _best(self) -> str:
        if self.best is not None:
            return f"best {self.best}"
        near = self.nearest
        if near is None:
            return "none reached yet"
        return (
            f"none reached yet, nearest {near.value:.4g} at step {near.step} of trial "
            f"{near.trial}"
        )

    @property
    def _waiting(self) -> str:
        share = self.data_wait
        return f", {share:.0%} waiting for data" if share >= 0.01 else ""

    def sentence(self, label: str) -> str:
        """Returns the whole state as a line of a log."""
        return (
            f"{label}: {self.pending} of {self.prefix} trials running "
            f"({self.running} now), {self.reached} reached, {self.diverged} diverged, "
            f"{self._best}, {self.rate:.0f} steps/s, {self._time_left}{self._waiting}"
            f"{self.sweep}"
        )

    def fitted(self, place: str, name: str, width: int) -> str:
        """Returns what fits into `width` characters, shortening the name first."""
        bar = "#" * int(self.share * _BAR)
        kept = f"[{bar:.<{_BAR}}] {self._best}, {self._time_left}"
        start = f"{place} " if place else ""
        room = max(_SHORTEST_NAME, width - len(start) - len(kept) - 1)
        line = f"{start}{shortened(name, room)} {kept}"
        for more in (
            self.sweep,
            self._waiting,
            f", {self.pending} of {self.prefix} trials running",
            f", {self.reached} reached",
            f", {self.diverged} diverged",
            f", {self.rate:.0f} steps/s",
        ):
            if len(line) + len(more) > width:
                break
            line += more
        return line
