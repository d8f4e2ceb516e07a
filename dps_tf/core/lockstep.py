"""How far ahead of one another several workers may run the trials of one race.

A worker sees late what the others do, and some are faster than others. If each simply
ran on, trials of the fast ones would be far behind K_(m) before anybody knew it. So no
trial goes on to an evaluation that is further than LEAD beyond the trial that is
furthest behind.

What that guarantees. Until the study is decided some trial is followed further, so the
one furthest behind is before K_(m), and no trial goes past (1 + LEAD) K_(m); past K_(m)
only where that is more than 1 / LEAD evaluations. Old news only makes the others look
further behind than they are, so none of this depends on how fast news travels.
"""

from __future__ import annotations

from collections.abc import Sequence

from dps_tf.core.race import Plan, RaceRule
from dps_tf.core.trial import Trajectory

LEAD = 0.15
"""Greatest lead over the trial furthest behind, as a fraction of its step."""


def abreast(
    todo: Plan, trajectories: Sequence[Trajectory], rule: RaceRule
) -> tuple[int, ...]:
    """Returns the trials of a plan that may go on now, in the order of the plan.

    Nobody waits for draws that replace others (Shallue's feasible budgets): these begin
    late, and one alone would hold up all. An exhaustive study has nothing to outrun.

    Args:
        todo: made of the same trajectories.
        trajectories: of trials 0, 1, ...; missing ones have not started.
        rule: what decides the study.
    """
    trials = (*todo.pending, *todo.speculative)
    if rule.exhaustive or not todo.pending:
        return trials

    def step_of(trial: int) -> int:
        return trajectories[trial].last_step if trial < len(trajectories) else 0

    first_draws = [trial for trial in todo.pending if trial < rule.points]
    behind = min(map(step_of, first_draws or todo.pending))
    ahead = max(rule.schedule.next_after(behind), behind + int(LEAD * behind))
    return tuple(t for t in trials if rule.schedule.next_after(step_of(t)) <= ahead)
