"""How a study stands, on a terminal or in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dps_tf.core.race import Plan, RaceRule, follow_to
from dps_tf.core.trial import Trajectory

_LINE_SECONDS = 15.0
"""How often a line is written where the output is no terminal."""

_PRUNING_SECONDS = 0.2
"""How often the batches of a score are shown: drawing must not cost what it shows."""


def duration(seconds: float) -> str:
    """Returns a time to the eye, such as 1 h 02 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class StudyProgress:
    """One live line per cell on a terminal, plain lines elsewhere.

    Use as a context: the last state of the line stays.
    """

    def __init__(self, name: str, rule: RaceRule, stream: TextIO | None = None):
        """Shows nothing yet.

        Args:
            name: of the cell.
            rule: of its study.
            stream: where to; standard output by default.
        """
        self._name = name
        self._rule = rule
        self._stream = stream or sys.stdout
        self._begun = time.monotonic()
        self._written = self._begun
        self._first_steps: int | None = None
        self._pruning_shown = -_PRUNING_SECONDS
        self._live: Live | None = None

    def __enter__(self) -> StudyProgress:
        """Starts the live line, on a terminal."""
        if self._stream.isatty():
            console = Console(file=self._stream)
            self._live = Live(console=console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the live line."""
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def prepared(self, done: int, total: int) -> None:
        """Shows how many initial points have been made and pruned."""
        self._show(f"{self._name}: {done} of {total} initial points ready")
        if done == total:
            self._begun = time.monotonic()

    def pruning(self, text: str) -> None:
        """Shows how far the scores of an initial point are, a few times a second."""
        now = time.monotonic()
        if now - self._pruning_shown >= _PRUNING_SECONDS:
            self._pruning_shown = now
            self._show(f"{self._name}: {text}")

    def update(
        self,
        todo: Plan,
        trajectories: Sequence[Trajectory],
        running: int,
        data_wait: float = 0.0,
    ) -> None:
        """Shows how the study stands; on a log at most every _LINE_SECONDS."""
        self._show(self.line(todo, trajectories, running, data_wait))

    def _show(self, line: str) -> None:
        now = time.monotonic()
        if self._live is not None:
            self._live.update(Text(line, no_wrap=True), refresh=True)
        elif now - self._written >= _LINE_SECONDS:
            self._written = now
            print(line, file=self._stream, flush=True)

    def line(
        self,
        todo: Plan,
        trajectories: Sequence[Trajectory],
        running: int,
        data_wait: float = 0.0,
    ) -> str:
        """Returns the state of the study as one line.

        `data_wait`: share of the time for which training waited for data; told from a
        hundredth on.
        """
        steps = sum(state.last_step for state in trajectories)
        if self._first_steps is None:
            self._first_steps = steps
        elapsed = max(time.monotonic() - self._begun, 1e-3)
        rate = (steps - self._first_steps) / elapsed
        finished = [t.finish_step for t in trajectories if t.finish_step is not None]
        diverged = sum(t.diverged_step is not None for t in trajectories)
        best = f"best {min(finished)}" if finished else "none reached yet"
        left = self._steps_left(todo, trajectories)
        bound = "" if len(finished) >= self._rule.finishers else "at most "
        eta = f"{bound}{duration(left / rate)} left" if rate > 0 else "starting"
        waiting = f", {data_wait:.0%} waiting for data" if data_wait >= 0.01 else ""
        return (
            f"{self._name}: {len(todo.pending)} of {todo.prefix} trials running "
            f"({running} now), {len(finished)} reached, {diverged} diverged, {best}, "
            f"{rate:.0f} steps/s, {eta}{waiting}"
        )

    def _steps_left(self, todo: Plan, trajectories: Sequence[Trajectory]) -> int:
        end = todo.cutoff
        if self._rule.exhaustive:
            end = (self._rule.last_evaluation, todo.prefix)
        states = {i: t.last_step for i, t in enumerate(trajectories)}
        return sum(
            max(0, follow_to(trial, end, self._rule.schedule) - states.get(trial, 0))
            for trial in todo.pending
        )
