"""Real processes killed at random moments, again and again."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from dps_tf.analysis.loading import load
from dps_tf.store import LocalFiles, read_logs
from tests.faults.victim import STUDY, Victim
from tests.made_up.studies import reader_of, study_of, tables

pytestmark = pytest.mark.fault


def kill_at_random(children: Victim, directory: Path, kills: int, seed: int) -> int:
    """Kills children until that many have died of it, then lets one finish.

    Returns how many finished before they could be killed.
    """
    rng = random.Random(seed)
    died = finished = 0
    longest = 0.2
    while died < kills:
        children.start(
            kind="synthetic",
            directory=str(directory),
            slots=rng.choice([1, 2, 4]),
            seconds=0.002,
            kill_after=rng.uniform(0.0, longest),
        )
        code = children.end()
        assert code in (0, -signal.SIGKILL)
        died += code != 0
        finished += code == 0
        # A machine that is busy with other things takes longer.
        longest = min(max(0.05, longest * (0.5 if code == 0 else 1.03)), 3.0)
        if code == 0 or is_closed(directory):
            if died < kills:
                forget(directory)
            finished += 1
    assert children.start(kind="synthetic", directory=str(directory)) > 0
    assert children.end() == 0
    return finished


def is_closed(directory: Path) -> bool:
    return Path(reader_of(directory, study_of(STUDY)).layout.closed).exists()


def forget(directory: Path) -> None:
    """Puts a finished sweep aside, so that the next child begins anew."""
    number = len(list(directory.parent.glob(f"{directory.name}-finished-*")))
    directory.rename(directory.parent / f"{directory.name}-finished-{number}")


def check_no_trial_was_trained_after_its_end(directory: Path) -> None:
    layout = reader_of(directory, study_of(STUDY)).layout
    logs, problems = read_logs(LocalFiles(), layout.logs)
    assert problems == []
    ended: set[int] = set()
    for event in logs["main"]:
        if event["kind"] in ("evaluation", "divergence", "turn"):
            assert event["trial"] not in ended
        if event["kind"] == "divergence" or (
            event["kind"] == "evaluation"
            and event["metrics"]["validation/classification_error"] <= STUDY.goal
        ):
            ended.add(event["trial"])
    assert ended


def check_all(directory: Path, undisturbed: dict[str, bytes]) -> None:
    sweeps = [directory, *directory.parent.glob(f"{directory.name}-finished-*")]
    for sweep in sweeps:
        assert tables(sweep, study_of(STUDY)) == undisturbed, sweep
        check_no_trial_was_trained_after_its_end(sweep)


def test_killed_a_few_times_it_leaves_the_same_tables(children, undisturbed, tmp_path):
    kill_at_random(children, tmp_path / "sweep", kills=8, seed=1)
    check_all(tmp_path / "sweep", undisturbed)
    work = load(tmp_path / "sweep").work
    totals = work.groupby("quantity")["value"].max()
    assert totals["steps"] >= totals["floor_steps"]
