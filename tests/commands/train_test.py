"""Does `train` run, continue and refuse, each with the exit code it states?

And does `status` tell of it? Commands run in processes of their own: they define flags
of the same names.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dps_tf.core import UserError
from dps_tf.store import LocalFiles
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.options import Options
from dps_tf.workloads.reading import describe, read_configuration
from tests import interpreter

TINY = (
    "--gin_file=smoke/quickstart",
    "--gin_bindings=workload.points = 2",
    "--gin_bindings=workload.step_budget = 8",
    "--gin_bindings=sweep.batch_sizes = (16,)",
)


def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the package and returns what it printed."""
    return interpreter.run(["-m", f"dps_tf.{command}", *arguments])


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the one line of a refusal, after checking that it is one."""
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr
    return lines[0]


def test_a_sweep_is_run_once_told_about_and_held_to_its_configuration(
    tmp_path: Path,
) -> None:
    where = f"--sweep_dir={tmp_path / 'a sweep'}"
    first = run("train", *TINY, where)
    assert first.returncode == 0, first.stderr
    assert "b16-s0.0: no trial reached the goal (2 incomplete)" in first.stdout
    again = run("train", *TINY, where)
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    other = run("train", *TINY, where, "--gin_bindings=workload.optimizer='nesterov'")
    assert other.returncode == 0  # Another cell of the same sweep directory.
    changed = run("train", *TINY, where, "--gin_bindings=workload.split_seed = 1")
    assert "workload.split_seed: stored 0, now 1" in refused(changed)
    status = run("status", where, "--json")
    assert status.returncode == 0, status.stderr
    cells = json.loads(status.stdout)
    assert [cell["closed"] for cell in cells] == [True, True]
    assert cells[0]["outcomes"]["incomplete"] == 2
    assert cells[0]["steps_left"] == 0


def test_an_unknown_name_is_refused_with_its_neighbours() -> None:
    line = refused(run("train", "--gin_file=lee2021/mnist_sdg", "--sweep_dir=x"))
    assert "did you mean 'lee2021/mnist_sgd'" in line


def test_data_that_are_not_prepared_are_asked_for_by_a_command(tmp_path: Path) -> None:
    done = run(
        "train",
        "--gin_file=lee2021/mnist_sgd",
        f"--data_dir={tmp_path}",
        f"--sweep_dir={tmp_path / 'sweep'}",
    )
    assert "python -m dps_tf.prepare --dataset=mnist" in refused(done)
    assert not (tmp_path / "sweep").exists()


def test_a_batch_that_does_not_fit_is_refused_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    done = run(
        "train",
        *TINY,
        "--gin_bindings=sweep.batch_sizes = (16, 5000)",
        f"--sweep_dir={tmp_path / 'sweep'}",
    )
    assert "batch size 5000 is larger than the training set" in refused(done)
    assert not (tmp_path / "sweep").exists()


def test_an_unknown_flag_and_a_missing_directory_are_one_line_each() -> None:
    assert "sweep_dri" in refused(run("train", *TINY, "--sweep_dri=x"))
    assert "--sweep_dir is missing" in refused(run("train", *TINY))
    assert "holds no sweep" in refused(run("status", "--sweep_dir=nowhere"))


def test_dry_run_states_the_most_that_a_sweep_may_cost() -> None:
    sweep, text = read_configuration(["lee2021/mnist_sgd"], ["workload.points = 3"])
    told = describe(sweep, text)
    assert "cells: 56" in told
    assert "trials: 168" in told
    assert f"steps at most: {168 * 40_000}" in told
    examples = 3 * 40_000 * 4 * sum(2**k for k in range(1, 15))
    assert f"training examples at most: {examples}" in told
    assert "workload.optimizer = 'sgd'" in told
    assert "A race stops far below" in told
    whole = read_configuration(
        ["lee2021/mnist_sgd"], ["sweep.search_mode = 'exhaustive'"]
    )
    assert "A race stops" not in describe(*whole)


@pytest.mark.parametrize(
    ("binding", "sentence"),
    [
        ("sweep.sparsities = (0.5,)", "need a method"),
        ("sweep.batch_sizes = 64", "sweep.batch_sizes is 64; it must be a list"),
        ("workload.pints = 3", "did you mean 'points'"),
        ("workload.goal = 0.03", "workload.goal is 0.03; bind it to @goal()"),
        ("workload.sequence = 'halton'", "sequence 'halton' is unknown"),
        ("nonsense", "the configuration cannot be read"),
        ("workload.evaluation_interval = 5", "did you mean 'evaluation'"),
        ("worklod.points = 3", "did you mean 'workload'"),
        ("sweep.batch_size = 3", "did you mean 'batch_sizes'"),
        ("goal.threshold = 3%", "'goal.threshold = 3%' has no value that Python knows"),
        ("pruning.scope = 'layer'", "bind sweep.pruning to @pruning()"),
        ("step_budget.examples = 3", "bind workload.step_budget to @step_budget()"),
        ("sdg/workload.points = 3", "nothing refers to @sdg/workload()"),
        ("points = 8", "nothing refers to %points: write section.name"),
    ],
)
def test_mistakes_in_gin_are_one_sentence(binding: str, sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        read_configuration(["quickstart"], [binding])
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_of_several_bindings_the_one_without_a_value_is_named() -> None:
    fine = "sweep.workloads = (@one/workload(), @workload())"
    with pytest.raises(UserError, match=r"\('sweep.sparsities = \(0.0,,\)' has no"):
        read_configuration(["quickstart"], [fine, "sweep.sparsities = (0.0,,)"])


def test_a_binding_that_every_scope_overrides_is_refused() -> None:
    files = ["lee2021/mnist_reproduction"]
    with pytest.raises(UserError, match="counts nowhere.*sgd/workload.points"):
        read_configuration(files, ["workload.points = 8"])
    sweep, _ = read_configuration(files, ["sgd/workload.points = 8"])
    points = {s.cell.optimizer: s.workload.points for s in sweep.studies}
    assert points == {"sgd": 8, "nesterov": 48}
    both = ["workload.points = 8", "sgd/workload.points = 8"]
    assert read_configuration(files, both)[0].studies[0].workload.points == 8
    # What one of two scopes leaves open counts there.
    kept = ["lee2021/mnist_reproduction"], ["workload.step_budget = 500"]
    assert {s.workload.step_budget for s in read_configuration(*kept)[0].studies} == {
        500
    }


def test_what_a_file_binds_counts_unless_a_binding_takes_its_place(tmp_path) -> None:
    own = tmp_path / "own.gin"
    lines = ["include 'quickstart.gin'", "step_budget.examples = 1000"]
    own.write_text("\n".join(lines))
    with pytest.raises(UserError, match="bind workload.step_budget to @step_budget"):
        read_configuration([str(own)], [])
    own.write_text("\n".join([*lines, "workload.step_budget = @step_budget()"]))
    sweep, _ = read_configuration([str(own)], ["workload.step_budget = 50"])
    assert sweep.studies[0].workload.step_budget == 50


@pytest.mark.parametrize(
    ("binding", "sentence"),
    [
        ("workload.learning_rate_schedule = 'linear'", "needs decay_steps"),
        ("workload.network_arguments = {'width': 3}", "did you mean 'widths'"),
        ("workload.dataset_arguments = {'size': 3}", "reads nothing named 'size'"),
    ],
)
def test_a_workload_that_cannot_train_is_refused_before_its_first_trial(
    binding: str, sentence: str
) -> None:
    sweep, _ = read_configuration(["quickstart"], [binding])
    with pytest.raises(UserError, match=sentence):
        Backends(Options("unused"), LocalFiles()).check(sweep)
