"""The process dies, or the disk is full, at every point where a study writes."""

from __future__ import annotations

import math

import pytest

from dps_tf.store import LocalFiles, StoreError
from tests.core.naive_race import Study
from tests.made_up import studies
from tests.made_up.studies import SyntheticRunner, run, study_of, tables, trials_of
from tests.store.faulty_files import FaultyFiles, Killed

pytestmark = pytest.mark.fault

THREE = Study(0.25, 10, 30, points=3, finishers=1, feasible=False, max_draws=0)
TRIALS = trials_of([1, 0, 0], [1, 1, 1], ([1, 1, 1], 15))
STUDY = study_of(THREE)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, bytes]:
    return studies.undisturbed(THREE, TRIALS)


@pytest.fixture(autouse=True)
def all_is_saved_after_each_turn(monkeypatch):
    """The most write points that there may be."""
    monkeypatch.setattr("dps_tf.store.saving.SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr("dps_tf.store.saving.SNAPSHOT_SHARE", math.inf)


def fail_from(point: int, mode: str, directory: str) -> bool:
    """Returns False if the study was finished before that write point."""
    files = FaultyFiles(LocalFiles(), point, mode)
    try:
        run(directory, STUDY, SyntheticRunner(TRIALS), files=files)
    except Killed:
        assert mode != "full"
        return True
    except StoreError:
        assert mode == "full"
        return True
    assert files.points < point, "a failure was swallowed"
    return False


def check_from(first: int, every: int, mode: str, directory, expected) -> int:
    """Fails at write points first, first + every, ...; returns how many there were."""
    point = first
    while fail_from(point, mode, f"{directory}/{point}"):
        run(f"{directory}/{point}", STUDY, SyntheticRunner(TRIALS))
        assert tables(f"{directory}/{point}", STUDY) == expected, point
        point += every
    return point


@pytest.mark.parametrize(("mode", "first"), [("kill", 1), ("torn", 4), ("full", 7)])
def test_some_write_points(tmp_path, undisturbed, mode, first):
    assert check_from(first, 11, mode, tmp_path, undisturbed) > 60


# What the one above shows of each eleventh.
@pytest.mark.by_hand
@pytest.mark.parametrize("mode", ["kill", "torn", "full"])
def test_every_write_point(tmp_path, undisturbed, mode):
    assert check_from(1, 1, mode, tmp_path, undisturbed) > 60


@pytest.mark.parametrize("mode", ["kill", "full"])
def test_failing_again_and_again_ends_with_the_result(tmp_path, undisturbed, mode):
    # Each life gets a little further than the one before it.
    for point in range(5, 400, 13):
        if not fail_from(point, mode, str(tmp_path)):
            break
    assert tables(tmp_path, STUDY) == undisturbed
