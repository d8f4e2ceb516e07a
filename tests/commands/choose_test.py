"""Does a sweep with `@choose()` choose as the replay does, from its records alone?"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dps_tf
from dps_tf.analysis.fit_table import observations_by_curve
from dps_tf.analysis.law import FEW_POINTS
from dps_tf.analysis.plan import next_batch_size
from dps_tf.analysis.sweep_status import sweep_status
from dps_tf.cli.sweep_run import SweepRun
from dps_tf.core import Choice, UserError
from dps_tf.core.choice import FIRST
from dps_tf.store import LocalFiles, Lock, SweepLayout, SweepReader, read_json
from dps_tf.tuning import sweep
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.workloads.reading import configure
from tests import interpreter
from tests.faults.victim import results
from tests.launch.choose_test import replay_script
from tests.packaging.source_tree import SOURCE_TREE

PAGE = SOURCE_TREE / "docs" / "pages" / "explanation" / "decisions.md"
GIN = "smoke/nqm_choose"
CURVE = "noisy_quadratic-sgd-none-seed0-s0.0"
CELL = "noisy_quadratic-sgd-none-seed0-b{}-s0.0"
# Begins the sweep, and dies as soon as the second cell is finished.
KILLED = """
import os, sys
from dps_tf.cli.sweep_run import SweepRun
from dps_tf.tuning import sweep
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.workloads.reading import configure

finished = []
def describe(name, result):
    finished.append(name)
    if len(finished) == 2:
        os._exit(9)
    return name
sweep.describe_result = describe
SweepRun(configure("smoke/nqm_choose"), Options(sys.argv[1])).run(StopRequest())
"""


def sweep_run(directory: Path, **values: object) -> SweepRun:
    """Returns a run of the sweep with further values of choose or workload."""
    named = {name.replace("__", "."): value for name, value in values.items()}
    return SweepRun(configure(GIN, values=named), Options(str(directory)))


def run(directory: Path, **values: object) -> sweep.SweepOutcome:
    """Runs the sweep."""
    return sweep_run(directory, **values).run(StopRequest())


def chosen(directory: Path, curve: str = CURVE) -> list[int]:
    """Returns the recorded batch sizes of a curve."""
    record = read_json(LocalFiles(), SweepLayout(str(directory)).choice(curve))
    return [int(re.search(r"-b(\d+)-", name)[1]) for name, _ in record]


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of a sweep that was not disturbed."""
    directory = tmp_path_factory.mktemp("whole")
    run(directory)
    return directory


def test_fewer_cells_than_the_grid_are_chosen_as_in_the_replay(whole, tmp_path):
    sizes = 2 ** np.arange(2, 15)
    grid = configure(GIN, values={"sweep.batch_sizes": sizes})
    SweepRun(grid, Options(str(tmp_path))).run(StopRequest())
    [points] = observations_by_curve(dps_tf.load(tmp_path).results).values()
    assert len(points) == 13 and not points.is_bound.any()
    order = replay_script().chosen([points], "critical_batch_size", 256.0)
    replayed = [int(points.batch_size[place]) for _, place in order]
    assert FIRST == FEW_POINTS <= len(chosen(whole)) <= 6
    assert chosen(whole) == replayed[: len(chosen(whole))]
    assert results(whole).items() < results(tmp_path).items()


def test_killed_between_cells_it_goes_on_to_the_same_tables(whole, tmp_path):
    assert interpreter.run(["-c", KILLED, tmp_path]).returncode == 9
    assert len(chosen(tmp_path)) == 2
    assert [*run(tmp_path).ran] == [CELL.format(b) for b in chosen(whole)[2:]]
    assert results(tmp_path) == results(whole)
    path = SweepLayout(str(tmp_path)).choice(CURVE)
    other = SweepLayout(str(whole)).choice(CURVE)
    assert Path(path).read_bytes() == Path(other).read_bytes()
    assert not run(tmp_path).ran


def test_stopped_after_the_first_choice_it_goes_on(tmp_path, monkeypatch, whole):
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "start_sweep", lambda *_: None)
        patch.setattr(sweep.Sweep, "_run_cells", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path)
    assert chosen(tmp_path) == [256] and not (tmp_path / "cells").exists()
    run(tmp_path)
    assert chosen(tmp_path) == chosen(whole)


def test_the_page_shows_what_the_commands_print(tmp_path):
    section = PAGE.read_text("utf-8").partition("## A sweep that chooses")[2]
    [script] = re.findall(r"```bash\n(.*?)```", section.partition("\n## ")[0], re.S)
    train, status = (shlex.split(line)[1:] for line in script.splitlines())
    done = interpreter.run(train, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"```text\n{done.stdout}```" in section
    said = interpreter.run(status, modules=interpreter.TABLES, cwd=tmp_path).stdout
    assert "b256-s0.0: K* 64 in (60, 64]" in said
    assert "finished. Chosen: it is the middle one of 13 batch sizes\n" in said
    assert "it is the last: batch size 128 is sure" in said
    assert said.endswith("5 of 5 cells finished\n")


def test_a_cell_that_another_process_runs_is_waited_for(whole, tmp_path):
    first = Lock(LocalFiles(), SweepLayout(str(tmp_path)).cell(CELL.format(256)).root)
    assert first.acquire()
    with first:
        outcome = run(tmp_path)
    assert [*outcome.busy] == [CELL.format(256)] and not outcome.ran
    assert chosen(tmp_path) == [256]
    run(tmp_path)
    assert chosen(tmp_path) == chosen(whole)


@pytest.mark.slow
def test_each_curve_is_a_choice_of_its_own(whole, tmp_path):
    name = "workload.network_arguments.dimensions"
    outcome = run(tmp_path, sweep__axes={name: (100, 3000)}, choose__precision=0.2)
    one, two = (chosen(tmp_path, f"{CURVE}-{name}-{n}") for n in (100, 3000))
    assert one == chosen(whole) and two[2:4] == [1024, 32]
    assert len(outcome.ran) == len(one) + len(two)


def test_a_plan_shows_the_choice_and_what_may_still_be_run(whole, tmp_path, capsys):
    text = sweep_run(tmp_path / "new").plan((), {})
    said = f"{CELL.format(256)} is chosen: it is the middle one of 13 batch sizes.\n"
    assert capsys.readouterr().out == said
    assert re.search(r"^all 13 cells +\d", text, re.M) and not list(tmp_path.iterdir())
    text = sweep_run(whole).plan((), {})
    assert text.endswith("nothing to plan: all cells are finished.")
    said = capsys.readouterr().out
    assert said.count(" is chosen: ") == 6
    assert "no further batch size is chosen: batch size 128 is sure" in said


def test_a_choice_ends_at_its_budget_and_goes_on_with_a_larger_one(tmp_path, whole):
    run(tmp_path, choose__budget=1e-9)
    [cell] = sweep_status(LocalFiles(), SweepReader(LocalFiles(), str(tmp_path)))
    assert cell.reason.endswith("it is the last: the budget of 1e-09 seconds is spent")
    run(tmp_path)
    assert chosen(tmp_path) == chosen(whole)


def test_a_choice_without_any_k_ends_and_goes_on_with_more_steps(tmp_path, capsys):
    run(tmp_path, choose__low=64, workload__step_budget=48)
    assert chosen(tmp_path) == [1024]
    assert "no trial met the goal, and a choice begins with a K*" in (
        capsys.readouterr().out
    )
    run(tmp_path, choose__low=64)
    assert len(chosen(tmp_path)) >= 5


MISTAKES = {
    "choose.low is 64 and choose.high 16": {"choose__low": 64, "choose__high": 16},
    "choose.low is 0; it must be a whole number": {"choose__low": 0},
    "choose.precision is 0; it must be a positive": {"choose__precision": 0},
    "choose.step_times is {}: give": {"choose__step_times": {}},
    "choose.step_times[8] is -1": {"choose__step_times": {8: -1}},
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_values_that_cannot_be_are_one_sentence(sentence, tmp_path):
    with pytest.raises(UserError) as refused:
        run(tmp_path, **MISTAKES[sentence])
    assert sentence in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_with_other_values_chooses_as_in_a_new_directory(tmp_path):
    run(tmp_path / "again", choose__precision=0.2)
    for number, name in enumerate(("choose__high", "goal__threshold")):
        values = {"choose__precision": 0.2, name: (65536, 0.02)[number]}
        run(tmp_path / "again", **values)
        run(tmp_path / name, **values)
        assert chosen(tmp_path / "again") == chosen(tmp_path / name)


def test_recorded_seconds_decide_what_is_sure(whole):
    tables = dps_tf.load(whole)
    steps = tables.work[tables.work["quantity"] == "steps"]
    choice = Choice(8, 16384)
    for knee, sizes in ((256, ("128",)), (2048, ("256", "512"))):
        seconds = steps["value"] * (1 + steps["batch_size"] / knee) / 1000
        work = pd.concat([steps, steps.assign(quantity="seconds", value=seconds)])
        size, why = next_batch_size(choice, tables.results, work)
        found = re.match(r"batch size (\d+) is sure; it takes at most", why)
        assert size is None and found[1] in sizes
    with pytest.raises(UserError, match="bind choose.step_times"):
        next_batch_size(choice, tables.results, steps)
