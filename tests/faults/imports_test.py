"""Runs of others at an edge: is what the source says read, and nothing wrong silent?

Each case is a kind of record that other tools have misread in public; its kin are
generated.
"""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import summary_v2
from tensorboard.summary.writer.record_writer import RecordWriter

import dps_tf
from dps_tf.analysis.interchange.event_files import from_tensorboard
from dps_tf.analysis.interchange.optuna_studies import from_optuna, load_optuna
from dps_tf.analysis.interchange.run_tables import Runs, join, read_runs
from dps_tf.analysis.interchange.runs import Run, from_keras, from_rows, runs_of
from dps_tf.analysis.interchange.sweep import write_runs
from dps_tf.analysis.loading import load
from dps_tf.analysis.report.cautions import cautions
from dps_tf.core import Goal, UserError
from tests.analysis.few_sections import context_of
from tests.faults.recorded_runs import METRIC, check_sentence

pytestmark = pytest.mark.fault
GOAL = Goal(METRIC, 0.1)
TRIALS = "trial,workload,optimizer,batch_size,learning_rate\n0,w,sgd,8,0.1\n"


def write_log(
    path: Path,
    points: Sequence[tuple[int, float]] = (),
    tag: str = "val/error",
    restart: int | None = None,
    hparams: dict[str, float] | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        events = [event_pb2.Event(wall_time=1.0, file_version="brain.Event:2")]
        if restart is not None:
            mark = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            events.append(event_pb2.Event(step=restart, session_log=mark))
        if hparams:
            events.append(event_pb2.Event(summary=summary_v2.hparams_pb(hparams)))
        for step, number in points:
            value = summary_pb2.Summary.Value(tag=tag, simple_value=number)
            summary = summary_pb2.Summary(value=[value])
            events.append(event_pb2.Event(step=step, summary=summary))
        for event in events:
            writer.write(event.SerializeToString())


def written(runs, tmp_path: Path, goal: Goal = GOAL) -> tuple[pd.Series, str]:
    """Returns the result of the only cell, and the lines that were said."""
    lines: list[str] = []
    write_runs(runs, tmp_path / "sweep", goal, lines.append)
    [row] = [row for _, row in load(tmp_path / "sweep").results.iterrows()]
    return row, "\n".join(lines)


def from_text(folder: Path, rows: str, trials: str = TRIALS):
    folder.mkdir(exist_ok=True)
    (folder / "trials.csv").write_text(trials)
    (folder / "evaluations.csv").write_text(f"trial,step,{METRIC}\n{rows}")
    return read_runs(folder)


# The precision of the source


@pytest.mark.parametrize("source", ["tensorboard", "parquet", "optuna", "text"])
def test_a_goal_of_decimals_is_met_by_its_float32(tmp_path, source):
    curve = [(10, 0.3), (20, np.float32(0.1)), (30, 0.05)]
    if source == "tensorboard":
        write_log(tmp_path / "a" / "tfevents.1", curve)
        runs = from_tensorboard(tmp_path, batch_size=8)
    elif source == "optuna":
        runs = from_optuna(
            study_of([curve]), METRIC, steps_per_report=1, first_report=1, batch_size=8
        )
    else:
        values = [np.float32(x) for _, x in curve]
        rows = "".join(
            f"0,{s},{float(x)!r}\n" for (s, _), x in zip(curve, values, strict=True)
        )
        runs = from_text(tmp_path / "in", rows)
        if source == "parquet":
            frame = runs.evaluations.astype({METRIC: np.float32})
            frame.to_parquet(tmp_path / "in" / "evaluations.parquet")
            (tmp_path / "in" / "evaluations.csv").unlink()
            runs = read_runs(tmp_path / "in")
    row, _ = written(runs, tmp_path)
    assert (row["bracket_low"], row["steps_to_result"]) == (10, 20)


@pytest.mark.parametrize(
    ("metric", "threshold", "values", "met"),
    [
        (METRIC, 0.1, (0.05, 0.15), True),
        (METRIC, 0.1, (0.05, 0.15 + 3e-8), False),
        ("validation/accuracy", 0.8, (0.7, 0.9, 0.8), True),
        ("validation/accuracy", 0.8, (0.7, 0.9, 0.8 - 3e-7), False),
    ],
)
def test_a_mean_of_float32_meets_the_decimals_that_it_is_of(
    metric, threshold, values, met
):
    goal = Goal(metric, threshold, mean_of=len(values))
    assert goal.is_met([float(np.float32(value)) for value in values]) == met


def test_a_threshold_keeps_its_digits_whatever_is_printed():
    with np.printoptions(legacy="1.13"):
        thresholds = [
            Goal(METRIC, kind(1 / 3)).threshold for kind in (float, np.double)
        ]
    assert thresholds == [1 / 3, 1 / 3]


@pytest.mark.parametrize("threshold", np.random.default_rng(0).random(20).round(3))
def test_the_neighbours_of_a_float32_do_not_meet_an_equal_goal(threshold):
    single = np.float32(threshold)
    for direction, way in (("minimize", 1), ("maximize", -1)):
        goal = Goal("a/b", float(threshold), direction)
        beyond = float(np.nextafter(single, np.float32(way * np.inf)))
        assert goal.reaches(float(single)) and not goal.reaches(beyond)
        strict = Goal("a/b", float(threshold), direction, inclusive=False)
        better = float(np.nextafter(single, np.float32(-way * np.inf)))
        values = np.array([float(single), better, math.nan])
        assert strict.reaches(values).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, float])
@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.7, 0.9])
def test_a_threshold_of_any_precision_is_the_decimals_it_shows(kind, threshold):
    for direction in ("minimize", "maximize"):
        goal = Goal("a/b", kind(threshold), direction)
        assert goal.threshold == threshold and goal.reaches(threshold)


@pytest.mark.parametrize("values", [(40.0, 80.0, 95.0), (0.4, 0.8, 1.01)])
@pytest.mark.parametrize("metric", ["accuracy", "classification_error", "f1"])
def test_a_metric_in_percent_meets_no_goal_on_a_share(tmp_path, metric, values):
    write_log(tmp_path / "a" / "tfevents.1", enumerate(values, 1), f"val/{metric}")
    runs = from_tensorboard(tmp_path, batch_size=8)
    with pytest.raises(UserError, match="by its name a share") as refusal:
        write_runs(runs, tmp_path / "s", Goal(f"validation/{metric}", 0.93))
    check_sentence(refusal.value)
    name = f"validation/{metric}_percent"
    runs = from_tensorboard(
        tmp_path, batch_size=8, rename={f"val/{metric}": f"val/{metric}_percent"}
    )
    row, _ = written(runs, tmp_path, Goal(name, values[-1], "maximize"))
    assert row["steps_to_result"] == 3


@pytest.mark.parametrize(
    "name",
    [
        *("negated_loss", "flipped_loss", "inverted_accuracy", "inv_loss"),
        *("non_accuracy", "anti_accuracy", "complement_accuracy"),
        *("oneminus_accuracy", "one_minus_accuracy", "1_minus_f1"),
        *("loss_of_accuracy", "drop_in_accuracy", "error_of_psnr", "gap_accuracy"),
        *("loss_auc", "test_error_top_1_accuracy", "distance_to_f1"),
        *("-loss", "- log loss", "\u2212mse", "~acc", "!error", "_loss", "(1-acc)"),
        *("one-accuracy", "false_recall", "forgetting_accuracy", "val__loss", "acc-1"),
        *("accuracy_at_95_error", "loss/1", "task 2 loss", "mse^-1", "LOSS!"),
        *("100-acc", "100 - accuracy_percent", "no_error", "without_error"),
        *("std_accuracy", "var_acc", "chance_accuracy", "bits_per_second"),
        *(f"{x}_{y}" for x in ("fpr", "time") for y in ("at_95_recall", "for_f1")),
        *(f"epochs{x}{y}" for x in ("_until_", " before ") for y in ("acc", "psnr")),
    ],
)
def test_a_turned_metric_is_asked_for_its_direction(name):
    with pytest.raises(UserError, match="give direction"):
        Goal(f"validation/{name}", 0.1)
    with pytest.raises(UserError, match="give direction"):
        Goal(f"{name}/loss", 0.1)


# TensorBoard


@pytest.mark.parametrize("options", [{}, {"first_report": 0}])
def test_epochs_of_keras_are_no_updates(tmp_path, options):
    path = tmp_path / "logs" / "a" / "validation" / "tfevents.1"
    write_log(path, [(0, 0.5), (1, 0.05)], "epoch_error")
    with pytest.raises(UserError, match="'epoch_error', by which Keras numbers epochs"):
        from_tensorboard(tmp_path / "logs", batch_size=8, **options)
    options = {"steps_per_report": 10, "first_report": 0}
    runs = from_tensorboard(tmp_path / "logs", batch_size=8, **options)
    assert written(runs, tmp_path)[0]["steps_to_result"] == 20


@pytest.mark.parametrize("restart", [41, 61, 201])
def test_events_after_a_restart_mark_replace_later_ones(tmp_path, restart):
    first = [(10 * n, 0.5 if n < 8 else 0.05) for n in range(1, 13)]
    again = [(step, 0.3) for step in range(restart + 9, 260, 10)] + [(300, 0.05)]
    write_log(tmp_path / "r" / "tfevents.1", first)
    write_log(tmp_path / "r" / "tfevents.2", again, restart=restart)
    row, said = written(from_tensorboard(tmp_path, batch_size=8), tmp_path)
    kept = [step for step, x in [*first[: (restart - 1) // 10], *again] if x <= 0.1]
    assert row["steps_to_result"] == min(kept)
    assert ("restarts at step" in said) == (restart < 120)


@pytest.mark.parametrize("restart", [0, 5, 10])
def test_a_mark_that_replaces_all_of_a_metric_is_named(tmp_path, restart):
    """Two programs in one folder, an evaluator and then a trainer."""
    write_log(tmp_path / "r" / "tfevents.1", [(10, 0.5), (20, 0.05)], restart=0)
    trained = [(10, 1.5), (20, 1.0)]
    write_log(tmp_path / "r" / "tfevents.2", trained, "train/loss", restart)
    told = "tfevents.2' begins with a restart mark that replaces all .*'val/error'"
    with pytest.raises(UserError, match=told):
        from_tensorboard(tmp_path, batch_size=8)
    write_log(tmp_path / "s" / "tfevents.1", [(10, 0.5), (20, 0.05)])
    assert len(from_tensorboard(tmp_path, batch_size=8).trials) == 2


def test_steps_that_go_back_without_a_mark_are_named(tmp_path):
    write_log(tmp_path / "r" / "tfevents.1", [(10, 0.5), (20, 0.4)])
    write_log(tmp_path / "r" / "tfevents.2", [(10, 0.3), (30, 0.05)])
    _, said = written(from_tensorboard(tmp_path, batch_size=8), tmp_path)
    assert "go back, or stay, without a restart mark" in said


@pytest.mark.parametrize("values", [(0.5, 0.3, 0.05), (0.5, 0.05, 0.3), (0.3, 0.3)])
def test_values_of_a_tag_at_one_step_are_named(tmp_path, values):
    """As PyTorch writes them where no step is given."""
    write_log(tmp_path / "r" / "tfevents.1", [(0, value) for value in values])
    _, said = written(from_tensorboard(tmp_path, batch_size=8), tmp_path)
    assert ("or stay" in said) == (len(set(values)) > 1)


def test_batches_of_keras_are_numbered_by_updates_and_left_out(tmp_path):
    run = tmp_path / "logs" / "a"
    epochs = [(epoch, 0.5 if epoch < 2 else 0.05) for epoch in range(4)]
    write_log(run / "validation" / "tfevents.1", epochs, "epoch_error")
    batches = [(step, 0.5) for step in range(0, 40, 5)]
    write_log(run / "train" / "tfevents.1", batches, "batch_error")
    options = {"steps_per_report": 10, "first_report": 0, "batch_size": 8}
    row, _ = written(from_tensorboard(tmp_path / "logs", **options), tmp_path)
    assert (row["steps_to_result"], row["step_budget"]) == (30, 40)
    # In a log without epochs it is a name like any other.
    write_log(tmp_path / "own" / "tfevents.1", batches, "batch_error")
    own = from_tensorboard(tmp_path / "own", batch_size=8).evaluations
    assert own["step"].tolist() == [step for step, _ in batches]


@pytest.mark.parametrize("source", ["tensorboard", "optuna", "rows"])
@pytest.mark.parametrize(
    ("sizes", "unit"), [((8,), 10), ((8, 16), 1), ((8, 16), 10), ((8, 16, 32), 2)]
)
def test_epochs_of_several_batch_sizes_are_asked_about(tmp_path, source, sizes, unit):
    options = {"steps_per_report": unit, "first_report": 1}
    if source == "optuna":
        study = optuna.create_study()
        for size in sizes:
            trial = study.ask(
                {"batch_size": optuna.distributions.IntDistribution(1, 99)}
            )
            study.enqueue_trial({"batch_size": size})
            trial = study.ask(
                {"batch_size": optuna.distributions.IntDistribution(1, 99)}
            )
            trial.report(0.05, 1)
            study.tell(trial, 0.05)
        runs = from_optuna(study, METRIC, **options)
    else:
        for size in sizes:
            write_log(tmp_path / "in" / f"b{size}" / "tfevents.1", [(1, 0.05)])
            rows = f"batch_size,step,val_error\n{size},1,0.05\n"
            (tmp_path / "in" / f"b{size}.csv").write_text(rows)
        read = from_rows if source == "rows" else from_tensorboard
        runs = read(tmp_path / "in", pattern="b{batch_size}", **options)
    said = [note for note in runs.notes if "if reports are epochs" in note]
    assert len(said) == (unit > 1 and len(sizes) > 1)


@pytest.mark.parametrize("source", ["tensorboard", "rows"])
@pytest.mark.parametrize(("end", "is_said"), [(60, False), (600, True), (5, False)])
def test_a_metric_by_epochs_beside_others_by_updates_is_named(
    tmp_path, source, end, is_said
):
    unit = 1 if is_said else 10
    points = [(unit * n, 0.5 if n < 3 else 0.05) for n in range(1, 7)]
    trained = [(step, 1.0) for step in range(end // 5, end + 1, end // 5)]
    folder = tmp_path / "in"
    write_log(folder / "a" / "tfevents.1", points)
    write_log(folder / "a" / "tfevents.2", trained, "train/loss")
    rows = [f"a,8,{step},{value}," for step, value in points]
    rows += [f"a,8,{step},,{value}" for step, value in trained]
    text = "\n".join(["run,batch_size,step,val_error,train_loss", *rows, ""])
    (folder / "runs.csv").write_text(text)
    read = from_tensorboard if source == "tensorboard" else from_rows
    options = {"batch_size": 8} if source == "tensorboard" else {}
    row, said = written(read(folder, **options), tmp_path)
    assert row["steps_to_result"] == 3 * unit
    assert ("if its steps count epochs" in said) == is_said


@pytest.mark.parametrize(
    ("interval_of", "is_said"),
    [
        (lambda size: 5 * size, True),  # five updates, counted by examples
        (lambda size: 1000, False),
        (lambda size: 5, False),
        (lambda size: 10_000 // size, False),  # epochs
        (lambda size: 10_000 // size * size, False),
    ],
)
def test_steps_that_may_count_examples_are_named(tmp_path, interval_of, is_said):
    rows = [
        f"b{size},{size},{interval_of(size) * n},{0.5 if n < 3 else 0.05}"
        for size in (8, 24, 40)
        for n in range(1, 5)
    ]
    text = "\n".join(["run,batch_size,step,val_error", *rows, ""])
    (tmp_path / "runs.csv").write_text(text)
    lines: list[str] = []
    write_runs(from_rows(tmp_path), tmp_path / "sweep", GOAL, lines.append)
    said = [line for line in lines if "5 times the batch size" in line]
    assert len(said) == is_said


@pytest.mark.parametrize(
    ("below", "metric"),
    [
        ("error_val", METRIC),  # add_scalars of PyTorch
        ("error/val", METRIC),  # of tensorboardX
        ("error_val/top1", "logged/error_val_top1"),  # a slash in a part's name
        ("error_eval_it", "logged/error_eval_it"),
        ("eval_holdout", "validation/holdout_error"),  # a named one of an estimator
        ("eval", METRIC),  # of TensorFlow's estimators
        ("validation", METRIC),
        ("error_ema", "logged/error_ema"),
    ],
)
def test_folders_that_a_writer_makes_are_one_run(tmp_path, below, metric):
    logs = tmp_path / "logs"
    for name in ("one", "two"):
        write_log(logs / name / "tfevents.1", [(10, 0.1)], "rate")
        write_log(logs / name / below / "tfevents.1", [(10, 0.4), (20, 0.1)], "error")
    runs = from_tensorboard(logs, batch_size=8)
    assert runs.trials.index.tolist() == ["one", "two"]
    row, _ = written(runs, tmp_path, Goal(metric, 0.1, "minimize"))
    assert (row["trials"], row["steps_to_result"]) == (2, 20)


def test_add_hparams_gives_metaparameters_and_no_result_at_step_0(tmp_path):
    write_log(tmp_path / "a" / "tfevents.1", [(10, 0.4), (20, 0.1)])
    rate = {"learning_rate": 0.5}
    write_log(tmp_path / "a" / "17.25" / "tfevents.1", [(0, 0.01)], hparams=rate)
    runs = from_tensorboard(tmp_path, batch_size=8)
    assert runs.trials["learning_rate"].to_dict() == {"a": 0.5}
    assert written(runs, tmp_path)[0]["steps_to_result"] == 20


@pytest.mark.parametrize("places", [("1", "2"), (".", ".")])
def test_metaparameters_that_a_run_sets_anew_are_named(tmp_path, places):
    write_log(tmp_path / "a" / "tfevents.1", [(10, 0.05)])
    for number, place in enumerate(places):
        path = tmp_path / "a" / place / f"tfevents.x{number}"
        write_log(path, hparams={"batch_size": 8.0 + number, "rate": 0.1})
    runs = from_tensorboard(tmp_path)
    assert runs.trials["batch_size"].tolist() == [9]
    [note] = runs.notes
    assert note == "run 'a' has several values of batch_size: the last one counts."


@pytest.mark.parametrize(
    "tag",
    [
        *(f"val/error vs {unit}" for unit in ("samples", "consumed_tokens", "a time")),
        "Train/Samples/train_loss",
    ],
)
def test_a_tag_that_is_numbered_by_no_updates_is_left_out(tmp_path, tag):
    """As Megatron-LM and DeepSpeed write losses against the samples."""
    write_log(tmp_path / "a" / "tfevents.1", [(10, 0.5), (20, 0.05)])
    write_log(tmp_path / "a" / "tfevents.2", [(2560, 0.05)], tag)
    runs = from_tensorboard(tmp_path, batch_size=8)
    row, said = written(runs, tmp_path)
    assert row["steps_to_result"] == 20 and "note" not in said
    assert [*runs.evaluations] == ["step", METRIC, "trial"]
    write_log(tmp_path / "b" / "a" / "tfevents.1", [(2560, 0.05)], tag)
    with pytest.raises(UserError, match="without numbers by updates, 'a'"):
        from_tensorboard(tmp_path / "b", batch_size=8)


@pytest.mark.parametrize(("last", "is_said"), [(9, False), (95, True)])
@pytest.mark.parametrize("unit", [1, 10])
def test_a_tag_beyond_the_epochs_of_keras_is_named(tmp_path, last, is_said, unit):
    folder = tmp_path / "a"
    for tag, end in (("epoch_loss", 9), ("batch_loss", 200), ("error", last)):
        points = [(step, 0.5) for step in range(0, end + 1)]
        write_log(folder / "validation" / f"tfevents.{tag}", points, tag)
    runs = from_tensorboard(
        tmp_path, batch_size=8, steps_per_report=unit, first_report=0
    )
    said = "'error' ends at step 95, and epochs at 9" in "".join(runs.notes)
    assert said == (is_said and unit != 1)


def test_splits_around_all_runs_are_parts_of_each(tmp_path):
    for split, error in (("train", 0.01), ("val", 0.1)):
        for run in "ab":
            path = tmp_path / "logs" / split / run / "tfevents.1"
            write_log(path, [(10, error)], "error")
    runs = from_tensorboard(tmp_path / "logs", batch_size=8)
    assert runs.trials.index.tolist() == ["a", "b"]
    assert set(runs.evaluations) == {"trial", "step", "train/error", METRIC}


@pytest.mark.parametrize("name", ["test", "train", "eval"])
def test_a_run_is_called_as_a_split_is_and_is_none(tmp_path, name):
    for run in (name, "other"):
        write_log(tmp_path / "logs" / run / "tfevents.1", [(10, 0.4), (20, 0.1)])
    runs = from_tensorboard(tmp_path / "logs", batch_size=8)
    assert len(runs.trials) == 2 and "other" in runs.trials.index
    assert written(runs, tmp_path)[0]["trials"] == 2


@pytest.mark.parametrize("source", ["tensorboard", "optuna"])
@pytest.mark.parametrize(("first", "given"), [(0, 1), (1, 0), (0, 0), (1, 1)])
def test_reports_that_may_count_from_another_number_are_named(
    tmp_path, source, first, given
):
    curve = [(first, 0.5), (first + 1, 0.3), (first + 2, 0.1)]
    options = {"steps_per_report": 10, "first_report": given, "batch_size": 8}
    if source == "optuna":
        runs = from_optuna(study_of([curve]), METRIC, **options)
    else:
        write_log(tmp_path / "logs" / "a" / "tfevents.1", curve)
        runs = from_tensorboard(tmp_path / "logs", **options)
    row, said = written(runs, tmp_path)
    assert row["steps_to_result"] == 30 + 10 * (first - given)
    assert (f"give first_report={first}" in said) == (first != given)


@pytest.mark.parametrize("lost", ["loss", "val_loss", "val_error"])
def test_a_history_that_ends_without_a_finite_value_has_diverged(tmp_path, lost):
    history = {name: [0.5, 0.4] for name in ("loss", "val_loss", "val_error")}
    history[lost] = [0.5, math.nan]
    given = types.SimpleNamespace(
        history=history, epoch=[0, 1], params={"steps": 10, "epochs": 5}
    )
    row, _ = written(from_keras({"a": given}, batch_size=8), tmp_path)
    assert row["infeasible"] == 1 and row["steps_bound"] == ""
    with pytest.raises(UserError, match="give what fit returned"):
        from_keras({"a": history}, batch_size=8)


def test_runs_without_an_evaluation_are_no_trials_and_named(tmp_path):
    write_log(tmp_path / "a" / "tfevents.1", [(10, 0.1)])
    write_log(tmp_path / "crashed" / "tfevents.1")
    row, said = written(from_tensorboard(tmp_path, batch_size=8), tmp_path)
    assert row["trials"] == 1 and row["steps_bound"] == "" and "'crashed'" in said


@pytest.mark.parametrize("more", ["", "epoch,"])
def test_a_file_with_a_header_alone_is_no_run_and_named(tmp_path, more):
    header = f"step,{more}val_error"
    (tmp_path / "b8_a.csv").write_text(f"{header}\n10,{'1,' if more else ''}0.05\n")
    (tmp_path / "b8_crashed.csv").write_text(f"{header}\n")
    row, said = written(from_rows(tmp_path, pattern="b{batch_size}_*"), tmp_path)
    assert row["trials"] == 1 and "'b8_crashed'" in said
    with pytest.raises(UserError, match="has an evaluation"):
        from_rows(tmp_path / "b8_crashed.csv", batch_size=8)


@pytest.mark.parametrize(
    "name",
    [
        "epoch",
        "Samples seen",
        "n_tokens",
        "_step",
        "env_step",
        "Wall time",
        "iteration",
    ],
)
def test_a_column_that_counts_no_updates_is_asked_about(tmp_path, name):
    (tmp_path / "r.csv").write_text(f"run,{name},val_error\na,2,0.05\n")
    given = {"rename": {name: "step"}, "batch_size": 8}
    read = lambda **more: from_rows(tmp_path / "r.csv", **given, **more)  # noqa: E731
    if name == "iteration":
        assert read().evaluations["step"].tolist() == [2]
        return
    with pytest.raises(UserError, match=f"'{name}' is to be the step, which counts"):
        read()
    assert read(steps_per_report=40).evaluations["step"].tolist() == [80]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rename": {"activaton": "x"}}, "'activaton' is to be renamed, .* no run has"),
        ({"optimiser": "adam"}, "optimiser is 'adam'; it must be a number"),
        ({"learning_rate": "0,1"}, "learning_rate is '0,1'; it must be a number"),
    ],
)
def test_what_a_caller_states_is_taken_or_refused(tmp_path, options, said):
    write_log(tmp_path / "a" / "tfevents.1", [(10, 0.1)])
    (tmp_path / "r.csv").write_text("run,step,val/error\na,10,0.1\n")
    for read in (from_rows, from_tensorboard):
        with pytest.raises(UserError, match=said):
            read(tmp_path, batch_size=8, **options)
        taken = {"rename": {"val/error": "val/x"}, "optimizer": "adam", "lr": "1e-1"}
        assert read(tmp_path, batch_size=8, **taken).trials["lr"].tolist() == [0.1]


# Directions


def study_of(curves, direction="minimize", **options) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=direction, **options)
    for curve in curves:
        trial = study.ask()
        for step, value in curve:
            trial.report(value, step)
        study.tell(trial, curve[-1][1])
    return study


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_direction_of_a_study_is_read_and_not_contradicted(tmp_path, direction):
    study = study_of([[(10, 0.4), (20, 0.6)]], direction)
    runs = from_optuna(
        study, "validation/q", steps_per_report=1, first_report=1, batch_size=8
    )
    assert runs.direction == direction
    other = {"minimize": "maximize", "maximize": "minimize"}[direction]
    with pytest.raises(UserError, match=f"states {direction!r}") as refusal:
        write_runs(runs, tmp_path / "s", Goal("validation/q", 0.5, other))
    check_sentence(refusal.value)
    row, _ = written(runs, tmp_path, Goal("validation/q", 0.5, direction))
    assert row["steps_to_result"] == {"minimize": 10, "maximize": 20}[direction]


def test_a_study_that_minimizes_reports_what_is_to_be_maximized(tmp_path):
    """By default a study minimizes, and its last value may be another number."""
    study = study_of([[(10, 0.5), (20, 0.95)]])
    runs = from_optuna(
        study, "validation/accuracy", steps_per_report=1, first_report=1, batch_size=8
    )
    row, _ = written(runs, tmp_path, Goal("validation/accuracy", 0.9))
    assert row["steps_to_result"] == 20


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("step", pd.to_datetime(["2020-01-01", "2020-01-02"])),
        ("step", pd.to_timedelta([10, 20], unit="s")),
        (METRIC, [0.5 + 0j, 0.05 + 3j]),
    ],
)
def test_what_numpy_would_make_a_number_of_is_refused(tmp_path, column, values):
    """A time would be its nanoseconds, and a complex number its real part."""
    table = pd.DataFrame({"trial": [0, 0], "step": [10, 20], METRIC: [0.5, 0.05]})
    trials = {"trial": [0], "workload": "w", "optimizer": "sgd", "batch_size": 8}
    runs = Runs(pd.DataFrame(trials), table.assign(**{column: values}))
    with pytest.raises(UserError, match=f"{column} in row 1 is .*must be a number"):
        write_runs(runs, tmp_path / "s", Goal(METRIC, 0.1))


@pytest.mark.parametrize(
    ("separator", "encoding", "said"),
    [(";", "utf-8", "by ';'"), ("\t", "utf-8", "by '.t'"), (",", "utf-16", "as UTF-8")],
)
def test_tables_of_other_forms_are_named(tmp_path, separator, encoding, said):
    text = f"run,batch_size,step,{METRIC}\na,8,10,0.05\n".replace(",", separator)
    (tmp_path / "runs.csv").write_text(text, encoding)
    with pytest.raises(UserError, match=said):
        from_rows(tmp_path / "runs.csv")


def test_a_journal_of_optuna_is_read_and_not_written_to(tmp_path):
    from optuna.storages.journal import JournalFileBackend

    path = tmp_path / "journal.log"
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    study_of([[(10, 0.4), (20, 0.1)]], storage=storage, study_name="mine")
    before = path.read_bytes()
    study = load_optuna(path)
    runs = from_optuna(study, METRIC, steps_per_report=1, first_report=1, batch_size=8)
    assert runs.evaluations["step"].tolist() == [10, 20]
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


# Values and steps of tables


@pytest.mark.parametrize("value", ["NaN", "nan", "-Infinity", "inf", "-inf"])
@pytest.mark.parametrize("others", ["0.5", "x"])
def test_a_run_that_ends_with_no_finite_value_has_diverged(tmp_path, value, others):
    rows = f"0,10,{value if others == 'x' else others}\n0,20,{value}\n"
    row, said = written(from_text(tmp_path / "in", rows), tmp_path)
    assert row["infeasible"] == 1 and row["steps_bound"] == "", said
    assert pd.isna(row["steps_to_result"])


@pytest.mark.parametrize("value", ["NaN", "-Infinity"])
def test_a_gap_before_finite_values_is_named_and_no_divergence(tmp_path, value):
    rows = f"0,10,0.5\n0,20,{value}\n0,30,0.1\n"
    row, said = written(from_text(tmp_path / "in", rows), tmp_path)
    assert (row["bracket_low"], row["steps_to_result"]) == (10, 30)
    assert "1 such values count as not measured" in said


def test_an_empty_field_is_no_divergence(tmp_path):
    row, _ = written(from_text(tmp_path / "in", "0,10,0.5\n0,20,\n"), tmp_path)
    assert row["infeasible"] == 0


def test_nan_of_parquet_is_a_value_and_null_is_none(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, lost in (("nan", math.nan), ("null", None)):
        from_text(tmp_path / name, "0,10,0.5\n")
        (tmp_path / name / "evaluations.csv").unlink()
        table = pa.table({"trial": [0, 0], "step": [10, 20], METRIC: [0.5, lost]})
        pq.write_table(table, tmp_path / name / "evaluations.parquet")
        (tmp_path / f"of_{name}").mkdir()
        row, _ = written(read_runs(tmp_path / name), tmp_path / f"of_{name}")
        assert row["infeasible"] == (name == "nan")


@pytest.mark.parametrize("histories", [[], "run", types.SimpleNamespace(history={})])
def test_histories_without_names_are_refused(histories):
    with pytest.raises(UserError, match="give a dict of what fit returned"):
        from_keras(histories, batch_size=16)


def test_halves_of_parquet_are_the_decimals_that_they_show(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from_text(tmp_path / "in", "0,10,0.5\n")
    (tmp_path / "in" / "evaluations.csv").unlink()
    halves = pa.array(np.array([0.5, 0.1], np.float16))
    table = pa.table({"trial": [0, 0], "step": [10, 20], METRIC: halves})
    pq.write_table(table, tmp_path / "in" / "evaluations.parquet")
    row, _ = written(read_runs(tmp_path / "in"), tmp_path)
    assert row["steps_to_result"] == 20


def test_rows_of_one_step_that_hold_different_metrics_are_one_evaluation(tmp_path):
    folder = tmp_path / "in"
    from_text(folder, "")
    (folder / "evaluations.csv").write_text(
        f"trial,step,{METRIC},train/loss\n0,10,0.1,\n0,10,,0.3\n"
    )
    row, said = written(read_runs(folder), tmp_path)
    assert row["steps_to_result"] == 10 and "several values" not in said


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,100,0.5\n0,200,0.3\n0,50,0.4\n0,250,0.1\n", "trial 0 go back to 50"),
        ("0,10,0.5\n0,10,0.3\n0,20,0.1\n", "several values of a metric at step 10"),
        ("0,0,0.1\n", "K* is 0"),
        ("0,49,0.5\n0,99,0.3\n0,149,0.1\n", "one less than a multiple of 50"),
        ("0,0,0.5\n0,1,0.4\n0,2,0.3\n0,3,0.1\n", "evaluated at every step"),
        ("0,0,0.5\n0,1,0.3\n0,3,0.1\n", ""),
        ("0,101,0.5\n0,201,0.3\n0,301,0.1\n", "one more than a multiple of 100"),
        ("0,1,0.5\n0,101,0.3\n0,201,0.1\n", ""),
        ("0,10,0\n0,20,0.5\n0,30,0.05\n", "it stands for what was not measured"),
        ("0,10,0.5\n0,20,-1\n0,30,0.05\n", "it stands for what was not measured"),
        ("0,10,0.5\n0,20,0.05\n0,30,0.2\n", ""),
        ("0,10,0.08\n0,20,0.05\n", f"every value of {METRIC} meets the goal 0.1"),
        ("0,10,50\n0,20,20\n", f"no value of {METRIC} comes near the goal 0.1"),
        ("0,10,0.9\n0,20,0.002\n0,30,0.001\n", ""),
        (f"0,20,0.5\n0,40,{1 - float(np.float32(0.9))}\n", "if only rounding parts"),
        (f"0,20,0.5\n0,40,{0.1 + 2**-15}\n", ""),
        (f"0,20,0.5\n0,40,{float(np.float32(0.1))}\n", ""),
    ],
)
def test_steps_and_values_that_may_mean_something_else_are_named(tmp_path, rows, said):
    lines = written(from_text(tmp_path / "in", rows), tmp_path)[1]
    assert said in lines and bool(said) == ("note" in lines)


def test_of_a_goal_of_0_no_value_is_far(tmp_path):
    runs = from_text(tmp_path / "in", "0,20,0.5\n0,40,0.01\n")
    assert "note" not in written(runs, tmp_path, Goal(METRIC, 0.0))[1]


def test_a_half_beside_the_goal_by_rounding_is_named(tmp_path):
    points = [(20, 0.5), (40, float(np.float16(0.3)))]
    write_log(tmp_path / "a" / "tfevents.1", points)
    runs = from_tensorboard(tmp_path, batch_size=8)
    said = written(runs, tmp_path, Goal(METRIC, 0.3))[1]
    assert "is 0.300048828125, and the goal 0.3: if only rounding parts" in said
    assert "round" not in written(runs, tmp_path, Goal(METRIC, 0.6, "maximize"))[1]


def test_a_value_that_rounding_puts_beyond_a_strict_goal_is_named(tmp_path):
    runs = from_text(tmp_path / "in", f"0,20,0.5\n0,40,{0.7 - 0.6}\n")
    assert "is 0.09999" in written(runs, tmp_path, replace(GOAL, inclusive=False))[1]


def test_steps_that_are_all_0_are_refused(tmp_path):
    runs = from_text(tmp_path / "in", "0,0,.5\n0,0,.3\n0,0,.08\n")
    with pytest.raises(UserError, match="trial 0 are all at step 0") as refusal:
        write_runs(runs, tmp_path / "s", GOAL)
    check_sentence(refusal.value)


# Bounds and ends


def test_the_trials_that_leave_k_star_open_are_named(tmp_path):
    trials = TRIALS + "1,w,sgd,8,0.2\n"
    runs = from_text(tmp_path / "in", "0,10,0.5\n0,20,0.1\n", trials)
    row, said = written(runs, tmp_path)
    assert row["steps_low"] < 20 and "1 of its trials ended" in said
    assert ": 1 at step 0." in said
    tables = load(tmp_path / "sweep")
    [caution] = [c for c in cautions(context_of(tables)) if c.title.endswith("bounded")]
    assert ": 1 at step 0." in caution.text


@pytest.mark.parametrize("best", [0, 1, 2, 5])
@pytest.mark.parametrize("rates", [[0.1, 0.3], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
def test_a_winner_at_the_end_of_what_was_tried_is_an_upper_bound(tmp_path, best, rates):
    best = min(best, len(rates) - 1)
    curve = pd.DataFrame({"step": [10, 20, 30], METRIC: [0.5, 0.3, 0.1]})
    early = curve.assign(**{METRIC: 0.05})
    runs = runs_of(
        [
            Run(str(n), early if n == best else curve, {"learning_rate": rate})
            for n, rate in enumerate(rates)
        ],
        "here",
        batch_size=8,
    )
    row, _ = written(runs, tmp_path)
    at_end = best in (0, len(rates) - 1)
    assert row["at_boundary"] == ("learning_rate" if at_end else "")


@pytest.mark.parametrize(("least", "most"), [(0.01, 0.1), (0.1, 10.0), (0.1, 1.0)])
def test_joined_studies_keep_the_ends_of_their_own_ranges(tmp_path, least, most):
    curve = pd.DataFrame({"step": [10, 20, 30], METRIC: [0.5, 0.3, 0.1]})
    parts = []
    for size, (low, high) in {8: (0.1, 1.0), 16: (least, most)}.items():
        rates = [low, (low * high) ** 0.5, high]
        best = high if size == 8 else rates[1]
        runs = [
            Run(
                str(r), curve.assign(**{METRIC: 0.05}) if r == best else curve, {"r": r}
            )
            for r in rates
        ]
        options = {"rename": {"r": "learning_rate"}, "batch_size": size}
        space = {"learning_rate": ["log", low, high]}
        parts.append(replace(runs_of(runs, "here", **options), space=space))
    write_runs(join(parts), tmp_path / "s", GOAL)
    assert load(tmp_path / "s").results["at_boundary"].tolist() == ["learning_rate", ""]
    assert bool(join(parts).space) == (most == 1.0)
    assert join(parts[0]).trials.equals(join(parts[:1]).trials)


def test_parts_of_a_joint_table_have_defaults_of_their_own(tmp_path):
    rows = pd.DataFrame({"trial": 0, "step": [10], METRIC: 0.05})
    cell = {"trial": 0, "workload": "w", "optimizer": "sgd"}
    plain, told = (pd.DataFrame([{**cell, "batch_size": n}]) for n in (8, 16))
    told = told.assign(status="COMPLETE", sparsity_method="snip", sparsity=0.5)
    write_runs(join([Runs(plain, rows), Runs(told, rows)]), tmp_path / "s", GOAL)
    found = load(tmp_path / "s").results
    names = ["batch_size", "sparsity_method", "sparsity", "steps_to_result"]
    expected = [[8, "none", 0, 10], [16, "snip", 0.5, 10]]
    assert found[names].to_numpy().tolist() == expected


def test_hidden_copies_of_tables_are_no_runs(tmp_path):
    for name in ("a.csv", ".ipynb_checkpoints/a-checkpoint.csv", ".a.csv"):
        path = tmp_path / ".home" / "runs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("batch_size,step,val_error\n8,10,0.05\n")
    assert len(from_rows(tmp_path / ".home" / "runs").trials) == 1
    assert len(from_rows(tmp_path / ".home" / "runs" / ".a.csv").trials) == 1


def test_hidden_event_files_are_no_runs_and_named(tmp_path):
    root = tmp_path / ".home"
    for place in ("a", "a/.ipynb_checkpoints", ".Trash-1000/files/b"):
        write_log(root / place / "tfevents.1", [(10, 0.05)])
    runs = from_tensorboard(root, batch_size=8)
    assert len(runs.trials) == 1 and "one of 2 event files in hidden" in str(runs.notes)


@pytest.mark.parametrize("noted", [8, 64])
def test_a_batch_size_that_a_trial_notes_otherwise_is_named(noted):
    study = optuna.create_study()
    trial = study.ask()
    trial.suggest_categorical("batch_size", [8])
    trial.set_user_attr("batch_size", noted)
    trial.report(0.05, 10)
    study.tell(trial, 0.05)
    runs = from_optuna(study, METRIC, steps_per_report=1, first_report=1)
    assert runs.trials["batch_size"].tolist() == [8]
    assert ("and 64 as an attribute" in str(runs.notes)) == (noted == 64)


@pytest.mark.parametrize("unit", ["40", None, 2.5, True, 0, -1])
@pytest.mark.parametrize("source", ["optuna", "optuna by trial", "rows"])
def test_updates_between_reports_are_a_whole_number(tmp_path, source, unit):
    """Python takes the text "40" twice where a report is numbered 2."""
    (tmp_path / "r.csv").write_text("batch_size,step,val_error\n8,2,0.05\n")
    study = study_of([[(2, 0.05)]])
    with pytest.raises(UserError, match="steps_per_report is .* a whole number"):
        if source == "rows":
            from_rows(tmp_path / "r.csv", steps_per_report=unit)
        else:
            given = (lambda trial: unit) if source == "optuna by trial" else unit
            options = {"steps_per_report": given, "first_report": 1}
            from_optuna(study, METRIC, batch_size=8, **options)


@pytest.mark.parametrize("first", ["1", None, 0.5, True, -1])
def test_the_number_of_the_first_report_is_a_whole_number(tmp_path, first):
    (tmp_path / "r.csv").write_text("batch_size,step,val_error\n8,2,0.05\n")
    options = {"steps_per_report": 10, "first_report": first, "batch_size": 8}
    for read in (
        lambda: from_rows(tmp_path / "r.csv", **options),
        lambda: from_optuna(study_of([[(2, 0.05)]]), METRIC, **options),
    ):
        with pytest.raises(UserError, match="first_report is .* a whole number"):
            read()


@pytest.mark.parametrize("source", ["rows", "tensorboard"])
@pytest.mark.parametrize(("stated", "is_said"), [(16, True), ("8", False)])
def test_a_column_that_a_caller_contradicts_is_named(tmp_path, source, stated, is_said):
    if source == "rows":
        (tmp_path / "r.csv").write_text("run,batch_size,step,val_error\na,8,10,.05\n")
        runs = from_rows(tmp_path / "r.csv", batch_size=stated)
    else:
        path = tmp_path / "a" / "tfevents.1"
        write_log(path, [(10, 0.05)], hparams={"batch_size": 8.0})
        runs = from_tensorboard(tmp_path, batch_size=stated)
    assert runs.trials["batch_size"].tolist() == [int(stated)]
    assert ("given for all runs as 16, which counts" in str(runs.notes)) == is_said


def test_what_a_caller_states_of_rows_overrides_them(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("run,batch_size,step,val_error\na,8,10,0.3\nb,8,10,0.05\n")
    sizes = lambda **options: from_rows(path, **options).trials["batch_size"].tolist()  # noqa: E731
    assert sizes() == [8, 8] and sizes(batch_size=16) == [16, 16]
    assert sizes(about={"b": {"batch_size": 32}}) == [8, 32]
    assert sizes(about={"b": {"batch_size": 32}}, batch_size=16) == [16, 32]
    cut = from_rows(path, about={"a": {"status": "INCOMPLETE", "steps": 20}}).trials
    assert cut["status"].tolist() == ["INCOMPLETE", "COMPLETE"]
    with pytest.raises(UserError, match="has no run 'c'"):
        sizes(about={"c": {"batch_size": 32}})


@pytest.mark.parametrize(
    "ask",
    [
        lambda runs, folder: write_runs(runs, folder, 0.1),
        lambda runs, folder: write_runs(runs, folder, "validation/error <= 0.1"),
        lambda runs, folder: write_runs([runs], folder, GOAL),
        lambda runs, folder: write_runs(runs.trials, folder, GOAL),
        lambda runs, folder: join([runs, str(folder)]),
        lambda runs, folder: join({"a": runs}),
        lambda runs, folder: from_optuna(
            "study.db", METRIC, steps_per_report=1, first_report=1
        ),
    ],
)
def test_runs_studies_and_goals_are_told_by_their_types(tmp_path, ask):
    with pytest.raises(UserError, match="is a .*: give (one|a) "):
        ask(from_text(tmp_path / "in", "0,10,0.05\n"), tmp_path / "s")


def test_a_flag_is_no_number_of_a_cell(tmp_path):
    (tmp_path / "r.csv").write_text("run,batch_size,step,val_error\na,True,10,0.05\n")
    with pytest.raises(UserError, match="batch_size is True; it must be a number"):
        from_rows(tmp_path / "r.csv")


@pytest.mark.parametrize("value", [{"a": 1}, [0.1, 0.2]])
def test_fields_with_several_values_are_left_out_as_texts_are(tmp_path, value):
    rows = {"batch_size": [8], "step": [10], "val_error": [0.05], "config": [value]}
    pd.DataFrame(rows).to_parquet(tmp_path / "r.parquet")
    row, _ = written(from_rows(tmp_path / "r.parquet"), tmp_path)
    assert row["steps_to_result"] == 10


@pytest.mark.parametrize("value", ["inf", "nan", "0.5"])
def test_a_loss_that_decides_that_a_run_diverged_is_named(tmp_path, value):
    (tmp_path / "r.csv").write_text(
        f"run,batch_size,step,val_error,val_aux_loss\na,8,10,0.05,{value}\n"
    )
    row, said = written(from_rows(tmp_path / "r.csv"), tmp_path)
    assert row["complete" if value == "0.5" else "infeasible"] == 1
    assert ("its last validation/aux_loss is not finite" in said) == (value != "0.5")


def test_a_categorical_rate_of_a_study_has_ends(tmp_path):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    for rate in (0.1, 0.2, 0.4):
        study.enqueue_trial({"learning_rate": rate})
        trial = study.ask(
            {
                "learning_rate": optuna.distributions.CategoricalDistribution(
                    (0.1, 0.2, 0.4)
                )
            }
        )
        trial.report(0.5, 10)
        trial.report(0.1 if rate == 0.4 else 0.3, 20)
        study.tell(trial, 0.1)
    runs = from_optuna(study, METRIC, steps_per_report=1, first_report=1, batch_size=8)
    assert written(runs, tmp_path)[0]["at_boundary"] == "learning_rate"


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    folder = tmp_path / "in"
    from_text(folder, "0,10,0.5\n0,20,0.1\n")
    for name in ("trials.csv", "evaluations.csv"):
        path = folder / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert written(read_runs(folder), tmp_path)[0]["steps_to_result"] == 20


# Long tables


def long_table(with_runs: bool) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Returns a long table, and the same runs as trials and evaluations."""
    random = np.random.default_rng(0)
    points = [(b, lr) for b in (8, 16, 32) for lr in (0.1, 0.3)]
    trials = pd.DataFrame(points, columns=["batch_size", "learning_rate"])
    trials = trials.assign(trial=trials.index, workload="runs", optimizer="unknown")
    trials.loc[4, "status"] = "INCOMPLETE"
    trials["status"] = trials["status"].fillna("COMPLETE")
    curves = [
        pd.DataFrame({"trial": n, "step": range(10, 10 * random.integers(3, 20), 10)})
        for n in trials.index
    ]
    evaluations = pd.concat(curves, ignore_index=True)
    errors = 1 - np.sort(random.random(len(evaluations)))
    evaluations[METRIC] = errors / evaluations["step"]
    wide = evaluations.merge(trials, on="trial")
    if with_runs:
        mixed = wide.sample(frac=1, random_state=0).sort_values("trial", kind="stable")
        return mixed.rename(columns={"trial": "run"}), trials, evaluations
    return wide.drop(columns="trial"), trials, evaluations


@pytest.mark.parametrize("kind", ["csv", "groups", "folder", "renamed"])
def test_a_long_table_gives_what_its_two_tables_give(tmp_path, kind):
    wide, trials, evaluations = long_table(kind not in ("groups", "folder"))
    (tmp_path / "two").mkdir()
    trials.to_csv(tmp_path / "two" / "trials.csv", index=False)
    evaluations.to_csv(tmp_path / "two" / "evaluations.csv", index=False)
    path, options = tmp_path / "long.csv", {}
    if kind == "folder":
        path, options = (
            tmp_path / "many",
            {"pattern": "b{batch_size}/lr{learning_rate}_*"},
        )
        for (size, rate), part in wide.groupby(["batch_size", "learning_rate"]):
            (path / f"b{size}").mkdir(parents=True, exist_ok=True)
            part = part.drop(columns=["batch_size", "learning_rate"])
            part.to_csv(path / f"b{size}" / f"lr{rate:e}_x1.csv", index=False)
    elif kind == "renamed":
        names = {"run": "id", "step": "iteration", METRIC: "error"}
        wide = wide.rename(columns=names)
        wide["loss"] = range(len(wide))
        path = path.with_suffix(".parquet")
        wide.to_parquet(path)
        options = {"rename": {new: old for old, new in names.items()}}
    else:
        wide.to_csv(path, index=False)
    results = []
    for name, runs in (
        ("a", read_runs(tmp_path / "two")),
        ("b", from_rows(path, **options)),
    ):
        write_runs(runs, tmp_path / name, Goal(METRIC, 0.02))
        results.append(load(tmp_path / name).results)
    assert results[0]["steps_to_result"].notna().any()
    by = [
        "batch_size",
        "steps_to_result",
        "bracket_low",
        "steps_bound",
        "learning_rate",
    ]
    by += ["trials", "at_boundary", "steps_low", "censored"]
    pd.testing.assert_frame_equal(results[0][by], results[1][by], check_dtype=False)


@pytest.mark.parametrize(
    ("first", "rows", "said"),
    [
        (
            "batch_size,learning_rate",
            "8,.1,10,.5\n8,.1,20,.4\n\n8,.1,20,.3\n",
            "begins in row 1 has several values",
        ),
        (
            "batch_size,learning_rate",
            "8,.1,10,.5\n8,.1,20,.4\n8,.05,30,.3\n",
            "row 3 begins at step 30",
        ),
        (
            "batch_size,learning_rate",
            "8,.1,10,.5\n8,.1,20,.4\n8,.05,30,.3\n8,.05,40,.2\n",
            "begins at step 30",
        ),
        *(  # a rate that changes while steps only go up
            ("batch_size,learning_rate", rows, "row 2 begins at step 10")
            for rows in (
                "8,0,0,.9\n8,.1,10,.5\n8,.1,20,.4\n",
                "8,.1,5,.9\n8,.2,10,.5\n8,.1,15,.4\n8,.2,20,.3\n",
            )
        ),
        ("batch_size,learning_rate", ",.1,10,.5\n", "has no batch size"),
        (
            "batch_size,learning_rate",
            "8,.1,10,.5\n8,.1,20,.4\n,.1,30,.3\n8,.1,40,.2\n",
            r"changed within a run \(row 3 has no batch_size\)",
        ),
        (
            "batch_size,learning_rate",
            "8,.1,10,.5\n8,,20,.4\n8,.1,30,.4\n8,.1,40,.4\n",
            "row 2 has no learning_rate",
        ),
        (
            "batch_size,epoch",
            "8,1,10,.5\n8,2,20,.4\n8,3,30,.3\n",
            "leave out columns that count what `step` counts",
        ),
        (
            "run,batch_size",
            "a,8,10,.5\na,16,20,.4\n",
            "several values of batch_size",
        ),
        ("run,batch_size", "a,8,10,.5\n,8,20,.4\n", "run is empty in row 2"),
        *(
            (
                f"run,batch_size,{x}",
                f"a,8,{y},10,.5\na,8,val,20,.4\n",
                f"{x} tells rows",
            )
            for x in ("split", "phase")
            for y in ("train", "Training", "test")
        ),
    ],
)
def test_rows_that_may_not_be_runs_are_refused(tmp_path, first, rows, said):
    path = tmp_path / "long.csv"
    path.write_text(f"{first},step,{METRIC}\n{rows}")
    with pytest.raises(UserError, match=said) as refusal:
        from_rows(path)
    check_sentence(refusal.value)


@pytest.mark.parametrize(
    ("name", "pattern", "ways"),
    [
        ("b8_lr0.1", "b{batch_size}_lr{learning_rate}", ""),
        ("b8-lr-1e-3", "b{batch_size}-lr{learning_rate}", ""),
        ("sgd_8_x", "{optimizer}_{batch_size}_*", ""),
        ("b8_lr1e-3_again", "b{batch_size}_lr{learning_rate}*", ""),
        ("8epochs", "{batch_size}e*", ""),
        ("b8kernels", "b{batch_size}*", ""),
        ("b8k", "b{batch_size}*", "no"),
        ("b8K_again", "b{batch_size}*", "no"),
        ("b8,192", "b{batch_size}*", "no"),
        ("b8,192", "b{batch_size},*", ""),
        ("b8x8", "b{batch_size}*", "no"),
        ("b8x8", "b{batch_size}x*", ""),
        ("b8_lr0p1", "b{batch_size}_lr{learning_rate}*", "no"),
        ("b8_lr1e_3", "b{batch_size}_lr{learning_rate}*", "no"),
        ("b8_lr1d-3", "b{batch_size}_lr{learning_rate}*", "no"),
        ("b8_001", "b{batch_size}*", ""),
        ("812", "{batch_size}{seed}", "no"),
        ("b-8", "*{batch_size}", "more than one"),
        ("a_b_8_9", "{optimizer}_{batch_size}*", "more than one"),
        ("b8_lr", "b{batch_size}_lr{learning_rate}", "no"),
        ("b8_lr1_2", "b{batch_size}_lr{learning_rate}", "no"),
        ("8_8", "{batch_size}_{batch_size}", "more than one"),
    ],
)
def test_a_pattern_reads_a_name_in_one_way_or_refuses(name, pattern, ways):
    curve = pd.DataFrame({"step": [10], METRIC: [0.1]})
    if ways:
        with pytest.raises(UserError, match=f"in {ways} way") as refusal:
            runs_of([Run(name, curve)], "here", pattern=pattern, batch_size=8)
        check_sentence(refusal.value)
        return
    runs = runs_of([Run(name, curve)], "here", pattern=pattern)
    assert runs.trials["batch_size"].tolist() == [8]
    with pytest.raises(UserError, match="'4' besides"):
        runs_of([Run(name, curve, {"batch_size": "4"})], "here", pattern=pattern)


# Long tables and histories


def history_of(losses, errors):
    values = {"loss": losses, "val_error": errors}
    params = {"steps": 10, "epochs": len(losses)}
    return types.SimpleNamespace(
        history=values, epoch=list(range(len(losses))), params=params
    )


@pytest.mark.parametrize("names", [("01", "1"), ("1e5", "100000"), ("1.0", "1")])
@pytest.mark.parametrize("column", ["run", "trial", "experiment"])
def test_runs_are_told_apart_by_the_text_of_their_names(tmp_path, names, column):
    rows = "".join(f"{name},8,10,0.3\n{name} ,8,20,0.1\n" for name in names)
    path = tmp_path / "runs.csv"
    path.write_text(f"{column},batch_size,step,val_error\n{rows}")
    rename = {"experiment": "run"} if column == "experiment" else {}
    runs = from_rows(path, rename=rename)
    assert runs.trials.index.tolist() == list(names)
    assert written(runs, tmp_path)[0]["trials"] == 2


@pytest.mark.parametrize("step", [2**53, 2**53 + 1, 2**62])
def test_a_step_that_a_float_rounds_is_refused(tmp_path, step):
    with pytest.raises(UserError, match="below 2\\^53"):
        written(from_text(tmp_path / "in", f"0,{step},0.05\n"), tmp_path)
    (tmp_path / "r.csv").write_text(f"batch_size,step,val_error\n8,{step},0.05\n")
    with pytest.raises(UserError, match="below 2\\^53"):
        written(from_rows(tmp_path / "r.csv"), tmp_path)


@pytest.mark.parametrize("option", ["steps_per_report", "first_report"])
def test_a_history_states_its_own_steps(option):
    with pytest.raises(UserError, match=f"leave {option} out"):
        from_keras({"a": history_of([1], [0.5])}, batch_size=8, **{option: 10})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": [0, 1, 0, 1]}, "do not go up"),
        ({"epoch": [1, 0, 2, 3]}, "do not go up"),
        ({"history": {"val_error": [[0.5, 0.4]] * 4}}, "several numbers in one value"),
    ],
)
def test_a_history_is_of_one_fit_and_of_numbers(changes, message):
    history = history_of([1] * 4, [0.5, 0.3, 0.2, 0.05])
    for name, value in changes.items():
        setattr(history, name, value)
    with pytest.raises(UserError, match=message):
        from_keras({"a": history}, batch_size=8)


@pytest.mark.parametrize("lost", range(1, 4))
@pytest.mark.parametrize("met", range(4))
def test_a_goal_counts_until_the_loss_is_lost(tmp_path, lost, met):
    losses = [0.5] * lost + [math.nan] * (4 - lost)
    errors = [0.5] * met + [0.05] * (4 - met)
    runs = from_keras({"a": history_of(losses, errors)}, batch_size=8)
    row, _ = written(runs, tmp_path)
    assert row["complete" if met < lost else "infeasible"] == 1
    if met < lost:
        assert row["steps_to_result"] == 10 * (met + 1)


@pytest.mark.parametrize("every", [{2}, np.array([2]), np.int64(2), (2,), range(2, 3)])
def test_epochs_of_validation_in_any_collection(tmp_path, every):
    history = history_of([1, 0.5], [0.05])
    runs = from_keras({"a": history}, batch_size=8, validation_freq=every)
    assert written(runs, tmp_path)[0]["steps_to_result"] == 20


@pytest.mark.parametrize("every", [0, -1, 2.0, "2", None, True, [0], [1.5], np.ones(1)])
def test_epochs_of_validation_are_whole(every):
    with pytest.raises(UserError, match="validation_freq is .* epochs") as refusal:
        from_keras({"a": history_of([1], [0.5])}, batch_size=8, validation_freq=every)
    check_sentence(refusal.value)


def test_a_goal_is_any_real_number():
    assert Goal(METRIC, Fraction(1, 10)).reaches(0.1)


def test_a_first_report_is_told_where_a_function_gives_the_updates_of_one():
    def notes(first: int) -> str:
        options = {"steps_per_report": lambda trial: 40, "first_report": first}
        study = study_of([[(0, 0.4), (1, 0.05)]])
        return " ".join(from_optuna(study, METRIC, batch_size=8, **options).notes)

    assert "give first_report=0" in notes(1) and not notes(0)


@pytest.mark.parametrize(
    "words", ["train dev", "fit test_set", "train_error dev_error", "a b b a"]
)
@pytest.mark.parametrize("apart", [0, 5])
def test_a_text_that_tells_rows_of_a_run_apart_is_refused(tmp_path, words, apart):
    rows = [
        f"a,8,{step + apart * place},{word},0.05"
        for step in (10, 20)
        for place, word in enumerate(words.split())
    ]
    header = "run,batch_size,step,kind,error\n"
    (tmp_path / "r.csv").write_text(header + "\n".join(rows))
    with pytest.raises(UserError, match="kind tells rows of a run apart"):
        from_rows(tmp_path / "r.csv")
    hosts = "a,8,10,h1,0.3\na,8,20,h1,0.2\na,8,30,h2,0.05\n"
    (tmp_path / "r.csv").write_text(header + hosts)
    assert len(from_rows(tmp_path / "r.csv").trials) == 1


def test_a_directory_holds_a_cell_once_and_is_not_trained_into(tmp_path):
    header = "run,batch_size,precision,step,val_error\n"
    rows = "a,8,float32,10,0.2\nb,8,bfloat16,10,0.05\n"
    (tmp_path / "r.csv").write_text(header + rows)
    runs = from_rows(tmp_path / "r.csv")
    with pytest.raises(UserError, match="b8-s0.0 has runs of two precisions"):
        write_runs(runs, tmp_path / "sweep", GOAL)
    (tmp_path / "r.csv").write_text(header + rows.replace("bfloat16", "float32"))
    write_runs(from_rows(tmp_path / "r.csv"), tmp_path / "sweep", GOAL)
    with pytest.raises(UserError, match="holds imported runs"):
        dps_tf.run(dps_tf.sweep("quickstart"), tmp_path / "sweep")


def test_tables_that_would_be_one_run_are_refused(tmp_path):
    frame = pd.DataFrame({"batch_size": [8], "step": [10], "val_error": [0.05]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.assign(batch_size=16).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="another file has a run 'a': rename one"):
        from_rows(tmp_path)


@pytest.mark.parametrize("read", [from_rows, from_tensorboard])
def test_runs_that_are_left_out_are_told(tmp_path, read):
    folder, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    for place in (folder, elsewhere):
        write_log(place / "a" / "tfevents.1", [(10, 0.05)])
        (place / "b.csv").write_text("batch_size,step,val_error\n8,10,0.05\n")
        if read is from_rows:
            (place / "a" / "tfevents.1").unlink()
    assert not read(folder, batch_size=8).notes
    (folder / "here").symlink_to("a")
    (folder / "circle").symlink_to("circle")
    (folder / "there").symlink_to(elsewhere)
    [note] = read(folder, batch_size=8).notes
    assert "left out, one of" in note
    if read is from_rows:
        (folder / "B.CSV").write_text("batch_size,step,val_error\n8,10,0.05\n")
        [note] = read(folder, batch_size=8).notes
        assert "B.CSV' is left out, one of 4 whose" in note
