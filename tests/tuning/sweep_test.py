from __future__ import annotations

import pytest

from dps_tf.core.errors import UserError
from dps_tf.core.steps_to_result import StudyResult, TrialResult
from dps_tf.core.study import StudySpecification
from dps_tf.core.sweep import SweepSpecification
from dps_tf.store.files import LocalFiles
from dps_tf.store.layout import SweepLayout
from dps_tf.store.records import read_json
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.study import Conditions, Prepared, run_study
from dps_tf.tuning.sweep import (
    SweepOutcome,
    check_directory,
    describe_result,
    run_sweep,
    start_sweep,
)
from tests.core.naive_race import Study
from tests.tuning.studies import (
    ENVIRONMENT,
    FACTS,
    interrupting,
    run,
    study_of,
    tables,
    trials_of,
)
from tests.tuning.synthetic_runner import SyntheticRunner

SMALL = Study(0.25, 10, 30, points=3, finishers=1, feasible=False, max_draws=0)
TRIALS = trials_of([1, 0, 0], [1, 1, 1], ([1, 1, 1], 15))
CELLS = tuple(study_of(SMALL, batch_size=size) for size in (8, 16, 32))
SWEEP = SweepSpecification(CELLS)


def launch(directory, runner_of, stop=None, said=None) -> SweepOutcome:
    """Runs the three cells; `runner_of` makes a runner for each batch size."""
    files, layout = LocalFiles(), SweepLayout(str(directory))
    start_sweep(files, layout, SWEEP, "workload.points = 3\n")

    def run_cell(study: StudySpecification, guard) -> StudyResult:
        return run_study(
            files,
            layout.cell(study.cell.name),
            study,
            lambda: Prepared(runner_of(study.cell.batch_size), ENVIRONMENT, FACTS),
            Conditions(stop or StopRequest(), guard=guard, say=lambda text: None),
        )

    say = (said if said is not None else []).append
    return run_sweep(files, layout, SWEEP, run_cell, say=say)


def test_cells_run_in_order_and_each_is_told(tmp_path):
    order, said = [], []

    def runner_of(batch_size: int) -> SyntheticRunner:
        order.append(batch_size)
        return SyntheticRunner(TRIALS)

    outcome = launch(tmp_path, runner_of, said=said)
    assert order == [8, 16, 32]
    assert list(outcome.ran) == [study.cell.name for study in CELLS]
    assert outcome.failed == [] and outcome.busy == {}
    assert len(said) == 3
    assert said[0].endswith("K* = 20 in (10, 20], trial 0 (1 complete, 2 censored)")
    layout = SweepLayout(str(tmp_path))
    cells = read_json(LocalFiles(), layout.sweep)["cells"]
    assert cells == [study.cell.name for study in CELLS]
    assert LocalFiles().read_bytes(layout.config) == b"workload.points = 3\n"


def test_finished_cells_are_not_run_again_and_need_no_runner(tmp_path):
    for study in CELLS[:2]:
        run(tmp_path, study, SyntheticRunner(TRIALS))

    def runner_of(batch_size: int) -> SyntheticRunner:
        assert batch_size == 32
        return SyntheticRunner(TRIALS)

    outcome = launch(tmp_path, runner_of)
    assert outcome.finished_before == [study.cell.name for study in CELLS[:2]]
    assert list(outcome.ran) == [CELLS[2].cell.name]
    again = launch(tmp_path, lambda size: pytest.fail("nothing is left to run"))
    assert len(again.finished_before) == 3 and not again.ran


def test_failed_trial_in_one_cell_does_not_stop_the_next(tmp_path):
    def runner_of(batch_size: int) -> SyntheticRunner:
        def before_slice(trial: int, step: int) -> None:
            if batch_size == 8 and trial == 0:
                raise MemoryError("no memory")

        return SyntheticRunner(TRIALS, before_slice=before_slice)

    said: list[str] = []
    outcome = launch(tmp_path, runner_of, said=said)
    assert outcome.failed == [CELLS[0].cell.name]
    assert "no trial reached the goal" in said[0] and "1 failed" in said[0]
    assert len(outcome.ran) == 3
    mended = launch(tmp_path, lambda size: SyntheticRunner(TRIALS))
    assert list(mended.ran) == [CELLS[0].cell.name] and mended.failed == []


def test_interruption_leaves_the_sweep_to_be_continued(tmp_path):
    stop = StopRequest()

    def runner_of(batch_size: int) -> SyntheticRunner:
        slices = 2 if batch_size == 16 else 99
        return SyntheticRunner(TRIALS, before_slice=interrupting(stop, slices))

    with pytest.raises(Interrupted):
        launch(tmp_path, runner_of, stop=stop)
    outcome = launch(tmp_path, lambda size: SyntheticRunner(TRIALS))
    assert outcome.finished_before == [CELLS[0].cell.name]
    assert len(outcome.ran) == 2
    # A cell does not depend on the company of others.
    run(tmp_path / "alone", CELLS[1], SyntheticRunner(TRIALS))
    assert tables(tmp_path, CELLS[1]) == tables(tmp_path / "alone", CELLS[1])


def test_bound_is_called_a_bound():
    complete = TrialResult("complete", 20, 20, 10)
    failed = TrialResult("failed", 0, error="no memory")
    result = StudyResult((complete, failed), ((20, 0),), False, False)
    text = describe_result("cell", result)
    assert text == "cell: K* = at most 20 in (10, 20], trial 0 (1 complete, 1 failed)"


def test_only_empty_directories_and_sweeps_are_taken(tmp_path):
    files = LocalFiles()
    check_directory(files, SweepLayout(str(tmp_path / "new")))
    check_directory(files, SweepLayout(str(tmp_path)))
    start_sweep(files, SweepLayout(str(tmp_path / "sweep")), SWEEP, "")
    check_directory(files, SweepLayout(str(tmp_path / "sweep")))
    with pytest.raises(UserError, match="choose a new or empty"):
        check_directory(files, SweepLayout(str(tmp_path)))
