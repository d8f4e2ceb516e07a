"""Does `train --plan` say beforehand what a sweep will cost, and what is missing?"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pandas as pd
import pytest

from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.plan import recorded_work
from dps_tf.analysis.step_times import checked_step_times
from dps_tf.cli.sweep_plan import (
    NOTHING_MEASURED,
    SweepRecords,
    asked_cells,
    like,
    plan_text,
)
from dps_tf.cli.sweep_run import SweepRun
from dps_tf.core import UserError
from dps_tf.store import LocalFiles, SweepLayout, SweepReader
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.calibration import Calibration, calibrate
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.sweep import start_sweep
from dps_tf.workloads.reading import SweepConfiguration, configure
from tests.launch.dry_runs import dry_run
from tests.made_up.small_sweeps import BINDINGS, configured

CELL = "noisy_quadratic-sgd-none-seed0-b{}-s0.0"
KNOWN = Calibration("a network", 2, {16: 0.5}, 0.0, 0.0, 0.0)
ROW = re.compile(r"(\S+) +([\d,]+) \(([\d,]+) to ([\d,]+)\) ")


def simulated(sizes: tuple[int, ...]) -> SweepConfiguration:
    """Returns the sweep of smoke/nqm_sgd at some batch sizes."""
    return configure("smoke/nqm_sgd", values={"sweep.batch_sizes": sizes})


def run(directory: Path, sizes: tuple[int, ...]) -> list[str]:
    """Runs the simulated sweep and returns its cells in the order of running."""
    outcome = SweepRun(simulated(sizes), Options(str(directory))).run(StopRequest())
    return list(outcome.ran)


@pytest.fixture(scope="module", name="small")
def _small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a sweep directory in which the two small batch sizes are finished."""
    directory = tmp_path_factory.mktemp("small")
    run(directory, (16, 64))
    return directory


def planned(directory: str, sizes: tuple[int, ...], *others: str) -> str:
    """Returns the plan of the simulated sweep."""
    return SweepRun(simulated(sizes), Options(directory)).plan(others, {})


def rows(text: str) -> dict[str, list[int]]:
    """Returns steps of a trial by cell: median, low, high."""
    found = [ROW.match(line) for line in text.splitlines()]
    return {m[1]: [int(m[i].replace(",", "")) for i in (2, 3, 4)] for m in found if m}


def test_without_anything_measured_the_bound_stands_alone(tmp_path):
    text = planned(str(tmp_path / "new"), (64, 16))
    assert NOTHING_MEASURED in text and not rows(text)
    assert "cells: 2" in text and "measured here with noisy_quadratic, sgd" in text
    assert re.search(r"^all 2 cells +\S+ s$", text, re.M)
    assert not (tmp_path / "new").exists()


def test_finished_cells_predict_those_that_wait(small, tmp_path):
    found = rows(planned(str(small), (16, 64, 1024)))
    assert list(found) == [CELL.format(1024)]
    run(tmp_path, (1024,))
    name = CELL.format(1024)
    work = recorded_work(SweepReader(LocalFiles(), str(tmp_path)).studies[name])
    _, low, high = found[name]
    assert low <= work["steps"] / work["trials"] <= high


def test_a_finished_sweep_and_a_table_predict_others(small, tmp_path):
    of_sweep = rows(planned("", (16, 64), f"{small}"))
    assert list(of_sweep) == [CELL.format(16), CELL.format(64)]
    curve = [("other", size, 5_000 // size + 40) for size in (8, 16, 64, 256)]
    table = pd.DataFrame(curve, columns=["curve", "batch_size", "steps_to_result"])
    table.to_csv(tmp_path / "table.csv", index=False)
    of_table = rows(planned("", (16, 64), f"{tmp_path}/table.csv"))
    for size, (middle, low, high) in zip((16, 64), of_table.values(), strict=True):
        assert low < middle < high
        assert low < 5_000 // size + 40 < high
    assert of_table != of_sweep


def test_a_finished_sweep_leaves_nothing_to_plan(small):
    assert "nothing to plan" in planned(str(small), (16, 64))


def test_measured_step_times_are_what_recommend_reads(small, tmp_path):
    path = tmp_path / "step_times.csv"
    # Of a finished sweep too, which is when one asks with what to train.
    sweep = SweepRun(simulated((16, 64)), Options(str(small)))
    text = sweep.plan((), {}, str(path))
    assert "nothing to plan" in text and f"written: {path}" in text
    table = checked_step_times(read_csv(path))
    assert list(table["batch_size"]) == [16, 64] and (table["devices"] == 1).all()
    with pytest.raises(UserError, match="cannot be written: No such file"):
        sweep.plan((), {}, str(tmp_path / "none" / "a.csv"))


def test_bounds_and_prices_are_products():
    (study,) = simulated((16,)).specification.studies
    nothing = pd.DataFrame(columns=["curve", "batch_size", "trials", "steps"])
    waiting = asked_cells([study]).assign(budget=3600, draws=8, trials=4)
    text = plan_text(nothing, waiting, KNOWN, {})
    # 3600 steps of 0.5 s for eight trials in two slots.
    assert re.search(r"at most\n\S+-s0.0 +2 h\nall 1 cells +2 h$", text)
    # In three lanes they are three groups, two of them in one slot; each costs three.
    lanes = dataclasses.replace(KNOWN, lanes={16: 3, 512: 1})
    text = plan_text(nothing, waiting, lanes, {})
    assert re.search(r"-s0.0 +2 h 15 min\n", text) and "groups of up to 3" in text
    far = waiting.assign(batch_size=200)
    text = plan_text(nothing, far, dataclasses.replace(lanes, steps={200: 0.5}), {})
    assert re.search(r"-s0.0 +2 h\n", text)
    done = waiting.assign(steps=4 * 10**9)
    text = plan_text(done, waiting, KNOWN, {"money": 3, "kWh": 0.5})
    row = r"-s0.0 +over 3,600 +1 h \(1 h to 1 h\)"
    assert len(re.findall(row, text)) == 1
    row = r"1 h \(1 h to 1 h\) +3 \(3 to 3\) +0.5 \(0.5 to 0.5\) +2 h$"
    assert len(re.findall(row, text, re.M)) == 2


def test_a_forecast_of_all_cells_has_two_ends(small):
    forecast = SweepRecords(LocalFiles(), str(small))
    found = forecast(simulated((1024, 128)).specification.studies)
    low, high = found.slot_seconds
    assert 0 < low < high and len(found.examples) == 2
    assert SweepRecords(LocalFiles(), str(small / "none"))(()) is None


def test_cells_begin_with_the_cheapest_that_is_predicted(tmp_path):
    assert run(tmp_path, (1024, 64, 16)) == [CELL.format(b) for b in (1024, 16, 64)]


MISTAKES = {
    "--plan --price=-1": "--price is -1.0; it must be a positive number",
    "--plan --watts=nan": "--watts is nan; it must be a positive number",
    "--price=2": "--price is for a plan: give --plan too",
    "--step_times=x": "--step_times is for a plan: give --plan too",
    "--like=x": "--like is for a plan: give --plan too",
    "--plan --like=nothing": "nothing holds no sweep",
    "--plan --like=nothing.csv": "no table of published curves 'nothing.csv'",
}


def test_values_that_cannot_be_are_one_sentence(tmp_path):
    given = [["--gin_file=smoke/nqm_sgd", *flags.split()] for flags in MISTAKES]
    answers = dry_run(given, tmp_path)
    for (code, said), sentence in zip(answers, MISTAKES.values(), strict=True):
        assert code == 2
        [line] = [each for each in said.splitlines() if each.startswith("error: ")]
        assert sentence in line and "Traceback" not in said


def test_a_sweep_without_a_finished_cell_teaches_nothing(tmp_path):
    sweep = simulated((16,))
    start_sweep(LocalFiles(), SweepLayout(str(tmp_path)), sweep.specification, "")
    with pytest.raises(UserError, match="has no finished cell"):
        like(str(tmp_path))


@pytest.mark.slow
def test_calibration_measures_three_batch_sizes_and_keeps_nothing(tmp_path):
    more = ["sweep.batch_sizes = (4, 8, 12, 16)", "sweep.sparsities = (0.0, 0.5)"]
    sweep = configured([*BINDINGS, *more, "sweep.sparsity_methods = ('snip',)"])
    options = Options(str(tmp_path / "sweep"), slots=2)
    backends = Backends(options, LocalFiles())
    pruning = backends.try_out(sweep)
    found = calibrate(backends, sweep.studies, pruning)
    assert list(found.steps) == sorted(found.lanes) == [4, 12, 16]
    assert found.slots == 2
    assert all(0 < each < 1 for each in found.steps.values())
    assert min(found.evaluation, found.start_up) > 0 and found.pruning == pruning > 0
    assert not list(tmp_path.iterdir())
