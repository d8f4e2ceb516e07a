"""What `status` tells of cells: closed, open, damaged, waiting, in shards."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from dps_tf.analysis import loading, report
from dps_tf.analysis.report.assembly import assemble
from dps_tf.analysis.sweep_status import (
    CellStatus,
    merged_status,
    progress_line,
    sweep_status,
)
from dps_tf.core import Cell, SweepSpecification
from dps_tf.store import LocalFiles, SweepLayout, SweepReader, read_json, write_json
from dps_tf.tuning.interruption import Interrupted
from dps_tf.tuning.sweep import describe_shortfall, start_sweep
from tests import interpreter
from tests.faults.damage_test import damage
from tests.made_up.studies import (
    SIX,
    SIX_TRIALS,
    SyntheticRunner,
    run,
    study_of,
    trials_of,
)
from tests.made_up.sweeps import write_open_study

STUDY = study_of(SIX)
FILES = LocalFiles()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("sweep")
    run(directory, STUDY, SyntheticRunner(SIX_TRIALS))
    return directory


def status_of(directory: Path) -> tuple[list[CellStatus], tuple[str, ...]]:
    sweep = SweepReader(FILES, str(directory))
    return sweep_status(FILES, sweep), sweep.problems


def test_a_closed_cell_is_told_from_its_tables(finished, tmp_path):
    [expected], problems = status_of(finished)
    assert expected.closed and expected.steps_to_result and not problems
    assert expected.line.endswith("; finished")
    results = loading.load(finished).results.iloc[0]
    assert expected.steps_to_result == results["steps_to_result"]
    # Its logs may say what they will.
    copy = shutil.copytree(finished, tmp_path / "copy")
    layout = SweepLayout(str(copy)).cell(STUDY.cell.name)
    damage(Path(layout.log("main")), "flipped")
    assert status_of(copy) == ([expected], ())


@pytest.mark.parametrize("name", ["trials.parquet", "closed.json"])
def test_a_closed_cell_with_damage_is_told_and_not_called_finished(
    finished, tmp_path, name
):
    copy = shutil.copytree(finished, tmp_path / "copy")
    layout = SweepLayout(str(copy)).cell(STUDY.cell.name)
    damage(Path(layout.root, name), "flipped")
    [cell], [problem] = status_of(copy)
    assert name in problem
    assert not cell.closed and "at most" in cell.reached
    assert "nothing left to train, but not closed: run the sweep again" in cell.line


def test_an_open_cell_tells_what_is_left(tmp_path):
    runner = SyntheticRunner(SIX_TRIALS, slice_steps=5, stop_at=8)
    with pytest.raises(Interrupted):
        run(tmp_path, STUDY, runner)
    [cell], problems = status_of(tmp_path)
    assert not problems and not cell.closed
    assert cell.steps_left > 0 and f"at most {cell.steps_left} steps" in cell.line
    assert cell.line.endswith("left, nobody is running it")
    assert cell.outcomes["running"] > 0


# Errors at steps 10 to 50, of which none is at most a quarter.
SHORT = trials_of(
    [1, 0.9, 0.6, 0.7, 0.8],
    [1, 0.5, 0.4, 0.35, 0.3],
    [1, 1, 1, 1, 1],
    ([1, 1, 1, 1, 1], 15),
    [1, 1, 1, 1, 1],
    [1, 1, 0.9, 0.31, 1],
)
NEAR = "best validation/classification_error 0.3, at step 50 of trial 1"


def test_a_cell_that_reached_nothing_tells_how_near_it_came_and_what_to_change(
    tmp_path,
):
    run(tmp_path, STUDY, SyntheticRunner(SHORT))
    [cell], _ = status_of(tmp_path)
    assert cell.closed and cell.steps_to_result is None
    assert f"none reached, {NEAR}" in cell.line
    assert "finished. To reach a goal: raise workload.step_budget" in cell.line
    assert cell.line.endswith("or set goal.threshold to 0.300, which it met.")
    # The command that trains says the same.
    study = SweepReader(FILES, str(tmp_path)).study(STUDY.cell.name)
    told = describe_shortfall(study, STUDY)
    assert NEAR in told and cell.advice in told
    # So does the report, for the goal that it is asked for.
    [caution] = [
        caution
        for caution in assemble(loading.load(tmp_path, goal=0.2)).cautions
        if caution.title == "Goal not reached"
    ]
    assert NEAR in caution.text and cell.advice in caution.text


def test_trials_that_all_failed_are_no_metric_without_a_number(tmp_path):
    def broken(trial: int, step: int) -> None:
        raise RuntimeError("no initializer")

    for _ in range(3):
        run(tmp_path, STUDY, SyntheticRunner(SIX_TRIALS, before_slice=broken))
    study = SweepReader(FILES, str(tmp_path)).study(STUDY.cell.name)
    assert describe_shortfall(study, STUDY).strip() == "all its trials failed."


def test_a_metric_that_is_never_a_number_is_named(tmp_path):
    run(tmp_path, STUDY, SyntheticRunner(trials_of(*[[float("nan")] * 5] * 6)))
    study = SweepReader(FILES, str(tmp_path)).study(STUDY.cell.name)
    told = describe_shortfall(study, STUDY)
    said = f"no trial has a finite value of {STUDY.goal.metric}."
    assert told.strip() == said
    cautions = assemble(loading.load(tmp_path)).cautions
    [caution] = [c for c in cautions if c.title == "Goal not reached"]
    assert said in caution.text


def test_a_running_cell_tells_how_near_it_came_so_far(tmp_path):
    runner = SyntheticRunner(SHORT, slice_steps=10, stop_at=12)
    with pytest.raises(Interrupted):
        run(tmp_path, STUDY, runner)
    [cell], _ = status_of(tmp_path)
    assert not cell.closed and cell.advice is None
    history = SweepReader(FILES, str(tmp_path)).study(STUDY.cell.name).history
    known = [
        (errors["validation/classification_error"], step, number)
        for number, trial in history.trials.items()
        for step, errors in trial.evaluations.items()
    ]
    value, step, number = min(known)
    assert f"{value:.4g}, at step {step} of trial {number};" in cell.line


def test_a_cell_that_waits_is_not_started(tmp_path):
    start_sweep(
        FILES, SweepLayout(str(tmp_path)), SweepSpecification((STUDY,)), gin_text=""
    )
    [cell], problems = status_of(tmp_path)
    assert cell.line == f"{STUDY.cell.name}: not started, nobody is running it"
    assert cell.steps_left is None and not problems


def test_the_cause_of_a_failure_is_told(tmp_path):
    def burst(trial: int, step: int) -> None:
        if trial == 1:
            raise ValueError("the disk of trial 1\nis on fire")

    run(tmp_path, STUDY, SyntheticRunner(SIX_TRIALS, before_slice=burst))
    [cell], _ = status_of(tmp_path)
    cause = "ValueError: the disk of trial 1 is on fire"
    assert cell.causes == (cause,)
    assert "1 failed" in cell.line and f"failed by {cause}" in cell.line


def shards(tmp_path: Path) -> list[Path]:
    """Returns two directories of one sweep, in each of which one cell has begun."""
    places = []
    for name, batch_size in (("a", 32), ("b", 64)):
        write_open_study(tmp_path / name, batch_size)
        places.append(tmp_path / name)
    layouts = [SweepLayout(str(place)) for place in places]
    cells = [read_json(FILES, layout.sweep)["cells"][0] for layout in layouts]
    for layout in layouts:
        write_json(FILES, layout.sweep, {"cells": [*cells, "waits"]})
    return places


def test_shards_are_one_sweep(tmp_path):
    places = shards(tmp_path)
    statuses = [status_of(place)[0] for place in places]
    assert [len(cells) for cells in statuses] == [3, 3]
    cells = merged_status(statuses)
    assert sorted(cell.name.rpartition("-b")[2] for cell in cells) == [
        "32-s0.0",
        "64-s0.0",
        "waits",
    ]
    tables = loading.load(*places)
    assert [sweep.not_begun for sweep in tables.sweeps] == [("waits",), ()]
    text = report.terminal_text(assemble(tables), tables)
    assert "1 cell has not begun" in text
    assert "Cells that have not begun (1 of 3 cells)" in text
    # Under names of the user's they are sweeps of their own.
    apart = loading.load(*places, labels=("one", "two"))
    assert [len(sweep.not_begun) for sweep in apart.sweeps] == [2, 2]


def test_the_command_reads_several_directories_and_tells_of_damage(tmp_path):
    places = shards(tmp_path)
    (places[0] / ".dps_tf").unlink()
    flags = [f"--sweep_dir={place}" for place in places]
    command = ["-m", "dps_tf.status", *flags]
    done = interpreter.run(command, modules=interpreter.TABLES)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and lines[-1] == (
        "0 of 3 cells finished; time left not known yet"
    )
    assert "K* at most 300 in (200, 300]" in lines[0]
    assert f"note: {places[0]}/.dps_tf is missing" in done.stderr
    done = interpreter.run([*command, "--json"], modules=interpreter.TABLES)
    assert [cell["steps_left"] is None for cell in json.loads(done.stdout)] == [
        False,
        True,
        False,
    ]


def cell_of(batch_size, **fields):
    cell = Cell("mlp", "sgd", "none", 0, batch_size, 0.0)
    return CellStatus(cell.name, cell.curve, batch_size, **fields)


def test_time_left_of_a_sweep_counts_cells_that_run_and_those_that_wait():
    """Steps by the law, 40,000/B + 80 for each of ten trials, at 0.1 s a step."""
    steps = {size: 10 * (40_000 // size + 80) for size in (8, 16, 32, 64, 128, 256)}
    finished = [
        cell_of(size, closed=True, steps=steps[size], seconds=steps[size] / 10)
        for size in (8, 16, 32, 64)
    ]
    runs = cell_of(128, steps_left=10, seconds_left=25.0, slots=2)
    waits = [cell_of(256)]
    line = progress_line([*finished, runs, *waits])
    found = re.fullmatch(
        r"4 of 6 cells finished; about .+ left \(80 %: (.+) to (.+)\)", line
    )
    low, high = (in_seconds(each) for each in found.groups())
    # At most 25 s, and what the last one takes in two slots.
    assert low < 25 + steps[256] / 10 / 2 < high < 3 * low
    nearly = progress_line([*finished, runs])
    assert nearly.startswith("4 of 5 cells finished; about 25 s left")
    late = dataclasses.replace(runs, seconds=1e6)  # than forecast in every draw
    told = "4 of 5 cells finished; at most 25 s left"
    assert progress_line([*finished, late]) == told
    assert progress_line(finished) == "4 of 4 cells finished"


def in_seconds(text):
    words = text.split()
    units = {"s": 1, "min": 60, "h": 3600}
    return sum(int(n) * units[u] for n, u in zip(words[::2], words[1::2], strict=True))


def test_time_left_is_not_stated_before_a_cell_is_finished():
    runs = cell_of(8, steps_left=10, seconds_left=25.0, slots=2)
    unknown = cell_of(8, steps_left=10)
    assert progress_line([runs]) == "0 of 1 cells finished; at most 25 s left"
    for cells in ([unknown], [runs, cell_of(16)], [cell_of(16)]):
        assert progress_line(cells).endswith("; time left not known yet")


LOOKING_THREE_TIMES = """
from dps_tf import status
pauses = iter(range(2))
def pause(seconds):
    if next(pauses, None) is None:
        raise KeyboardInterrupt
status.time.sleep = pause
status.main()
"""


def test_watching_tells_of_damage_once(tmp_path):
    write_open_study(tmp_path, 32)
    (tmp_path / ".dps_tf").unlink()
    done = interpreter.run(
        ["-c", LOOKING_THREE_TIMES, f"--sweep_dir={tmp_path}", "--watch"],
        modules=interpreter.TABLES,
    )
    assert done.returncode == 0
    assert done.stdout.count("0 of 1 cells finished") == 3
    assert done.stderr.count("note: ") == done.stderr.count("\n") == 1


def test_watching_a_finished_sweep_ends_and_json_is_not_watched(finished):
    command = ["-m", "dps_tf.status", f"--sweep_dir={finished}", "--watch"]
    done = interpreter.run(command, modules=interpreter.TABLES)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "1 of 1 cells finished"
    both = interpreter.run([*command, "--json"], modules=interpreter.TABLES)
    assert both.returncode == 2 and "--json and --watch" in both.stderr
