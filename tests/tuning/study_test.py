from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import keras_tuner
import pytest

from dps_tf.analysis.loading import load
from dps_tf.core import Goal, Space, UserError
from dps_tf.store import NETWORK, LocalFiles, read_json
from dps_tf.tuning.interruption import Interrupted
from dps_tf.tuning.study import is_finished
from tests.core.naive_race import answer
from tests.made_up.specifications import ENVIRONMENT, ERROR
from tests.made_up.studies import (
    SIX,
    SIX_TRIALS,
    TRAINING_INPUTS,
    SyntheticRunner,
    reader_of,
    rows_of,
    run,
    study_of,
    tables,
    trials_of,
)

STUDY = study_of(SIX)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """A sweep directory in which STUDY was run by one slot without interruption."""
    directory = tmp_path_factory.mktemp("undisturbed")
    run(directory, STUDY, SyntheticRunner(SIX_TRIALS))
    return directory


def test_closed_study_holds_what_the_rule_says(undisturbed):
    assert rows_of(load(undisturbed).trials) == list(answer(SIX_TRIALS, SIX).rows)
    curves = load(undisturbed).curves
    assert list(curves[curves["trial"] == 1]["step"]) == [10, 20, 30]
    assert list(curves[curves["trial"] == 1][ERROR]) == [1, 1, 0]
    work = load(undisturbed).work.set_index("quantity")["value"]
    assert work["work_ratio"] == 1.0


def test_record_names_the_machine_the_data_and_what_was_asked(undisturbed):
    record = read_json(LocalFiles(), reader_of(undisturbed, STUDY).layout.study)
    assert record["specification"] == STUDY.to_json()
    assert record["environments"] == [ENVIRONMENT]
    assert record["training_inputs"] == TRAINING_INPUTS


def test_finished_study_is_finished_for_itself_and_not_for_more(undisturbed):
    layout = reader_of(undisturbed, STUDY).layout
    assert is_finished(LocalFiles(), layout, STUDY)
    more = study_of(dataclasses.replace(SIX, finishers=3))
    assert not is_finished(LocalFiles(), layout, more)


CHANGES = {
    "goal": ({"goal": Goal(ERROR, 0.5)}, "<= 0.25, now"),
    "space": (
        {"space": Space.from_dict({"learning_rate": ("log", 1e-3, 1.0)})},
        "0.0001",
    ),
    "points": ({"points": 5}, "points: stored 6, now 5"),
    "search_mode": ({"search_mode": "exhaustive"}, "stored 'race', now 'exhaustive'"),
    "network": ({"network": "cnn"}, "stored 'mlp', now 'cnn'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_configuration_is_refused_with_the_difference(undisturbed, name):
    changes, shown = CHANGES[name]
    before = tables(undisturbed, STUDY)
    runner = SyntheticRunner(SIX_TRIALS)
    with pytest.raises(UserError) as caught:
        run(undisturbed, study_of(SIX, **changes), runner)
    assert shown in str(caught.value)
    assert "holds another study" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert runner.turns == []
    assert tables(undisturbed, STUDY) == before


def test_other_data_are_refused(undisturbed):
    other = ENVIRONMENT, {**TRAINING_INPUTS, "content_hash": "decaf"}
    with pytest.raises(UserError, match=r"other data.*c0ffee.*decaf"):
        run(undisturbed, STUDY, SyntheticRunner(SIX_TRIALS, inputs=other))


def inputs_of(network: str) -> tuple[dict, dict]:
    return ENVIRONMENT, {**TRAINING_INPUTS, NETWORK: network}


def test_another_network_is_refused(tmp_path):
    def stopped(network: str) -> None:
        runner = SyntheticRunner(SIX_TRIALS, stop_at=3, inputs=inputs_of(network))
        with pytest.raises(Interrupted):
            run(tmp_path, STUDY, runner)

    stopped("c0ffee" * 10)
    with pytest.raises(UserError, match=r"another network: .*c0ffeec0ffee .* decafdec"):
        stopped("decaf" * 12)
    record = read_json(LocalFiles(), reader_of(tmp_path, STUDY).layout.study)
    assert record["training_inputs"][NETWORK] == "c0ffee" * 10


def test_a_study_whose_trials_all_failed_at_once_begins_anew_with_the_repaired_network(
    undisturbed, tmp_path
):
    def broken(trial: int, step: int) -> None:
        raise RuntimeError("no initializer")

    said: list[str] = []
    for network in ("c0ffee" * 10, "decaf" * 12):
        inputs = inputs_of(network)
        for _ in range(3):
            runner = SyntheticRunner(SIX_TRIALS, before_slice=broken, inputs=inputs)
            result = run(tmp_path, STUDY, runner, say=said.append)
            assert {trial.outcome for trial in result.trials} == {"failed"}
    assert sum("is begun anew with another network" in line for line in said) == 1
    run(tmp_path, STUDY, SyntheticRunner(SIX_TRIALS, inputs=inputs_of("f00d" * 15)))
    assert tables(tmp_path, STUDY) == tables(undisturbed, STUDY)


def test_another_machine_is_refused_allowed_by_flag_and_recorded(undisturbed, tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, STUDY, SyntheticRunner(SIX_TRIALS, stop_at=5))
    other = {**ENVIRONMENT, "instruction_sets": "avx512f"}
    elsewhere = SyntheticRunner(SIX_TRIALS, inputs=(other, TRAINING_INPUTS))
    with pytest.raises(
        UserError, match=r"recorded 'avx2', here 'avx512f'.*--allow_other"
    ):
        run(tmp_path, STUDY, elsewhere)
    run(tmp_path, STUDY, elsewhere, allow_other_machine=True)
    record = read_json(LocalFiles(), reader_of(tmp_path, STUDY).layout.study)
    assert record["environments"] == [ENVIRONMENT, other]
    assert tables(tmp_path, STUDY) == tables(undisturbed, STUDY)


def test_another_machine_may_round_otherwise_where_it_is_allowed(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, STUDY, SyntheticRunner(SIX_TRIALS, stop_at=9))
    for state in Path(reader_of(tmp_path, STUDY).layout.states).iterdir():
        state.unlink()
    # Errors of 1 there are 0.9 here, and all that is known is trained again.
    here = [
        dataclasses.replace(t, errors=tuple(0.9 if e else 0 for e in t.errors))
        for t in SIX_TRIALS
    ]
    other = {**ENVIRONMENT, "instruction_sets": "avx512f"}
    elsewhere = SyntheticRunner(here, inputs=(other, TRAINING_INPUTS))
    # The first evaluation of each trial, which was exact, is only a bound there.
    turn = elsewhere.run
    elsewhere.run = lambda slot, jobs, stop: [
        dataclasses.replace(report, is_bound=report.step == 10)
        for report in turn(slot, jobs, stop)
    ]
    run(tmp_path, STUDY, elsewhere, allow_other_machine=True)
    curves = load(tmp_path).curves
    assert not curves["is_bound"].any()
    first = curves[curves["trial"] == 0].sort_values("step")
    assert list(first[ERROR]) == [1, 1, 0.9, 0.9]
    assert rows_of(load(tmp_path).trials) == list(answer(SIX_TRIALS, SIX).rows)


def test_nobody_reaching_everybody_at_once_and_everybody_diverging_close(tmp_path):
    for name, curve in {
        "nobody": [1] * 5,
        "everybody": [0] * 5,
        "diverged": ([1] * 5, 1),
    }.items():
        trials = trials_of(*[curve] * 6)
        runner = SyntheticRunner(trials, slots=3)
        result = run(tmp_path / name, STUDY, runner)
        assert result.decided
        expected = answer(trials, SIX)
        assert rows_of(load(tmp_path / name).trials) == list(expected.rows)
        assert result.finishers == expected.finishers
    everybody = load(tmp_path / "everybody").trials
    # Those that never began are recorded like those that did.
    assert (everybody["initial_seed"] > 0).all()


def keras_tuner_files(directory: Path) -> list[Path]:
    return sorted(Path(reader_of(directory, STUDY).layout.keras_tuner).rglob("*.json"))


def numbers(value) -> list[float]:
    if isinstance(value, dict):
        return [x for item in value.values() for x in numbers(item)]
    if isinstance(value, list):
        return [x for item in value for x in numbers(item)]
    return [value] if isinstance(value, float) else []


def test_keras_tuner_never_sees_nan(undisturbed):
    files = keras_tuner_files(undisturbed)
    assert len(files) == 6 + 2  # trials, oracle and tuner
    for file in files:
        text = file.read_text()
        assert all(map(math.isfinite, numbers(json.loads(text))))
        if file.name == "trial.json":
            assert json.loads(text)["status"] == "COMPLETED"


@pytest.mark.parametrize(
    "build", [lambda hp: None, lambda hp: hp.Int("units", 1, 9)], ids=["none", "other"]
)
def test_stock_keras_tuner_reloads_the_project(undisturbed, capsys, build):
    tuner = keras_tuner.RandomSearch(
        build,
        keras_tuner.Objective("steps_to_result", "min"),
        directory=reader_of(undisturbed, STUDY).layout.root,
        project_name="keras_tuner",
    )
    tuner.reload()
    drawn = STUDY.workload.draw(0, 6)
    best = [hp.values["learning_rate"] for hp in tuner.get_best_hyperparameters(6)]
    # In order: K_(1) of trial 1, K_(2) of trial 4; the diverged one comes last.
    assert best[:2] == [drawn[1]["learning_rate"], drawn[4]["learning_rate"]]
    assert best[5] == drawn[3]["learning_rate"]
    tuner.results_summary()
    shown = capsys.readouterr().out
    assert "steps_to_result" in shown
    assert "Score: 30.0" in shown and "Score: 40.0" in shown


def test_keras_tuner_says_nothing_while_a_study_runs(tmp_path, capfd):
    run(tmp_path, STUDY, SyntheticRunner(SIX_TRIALS))
    shown = capfd.readouterr()
    assert "Trial" not in shown.out + shown.err
    assert "Search" not in shown.out + shown.err


def test_keras_tuner_writes_nothing_before_a_study_is_decided(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, STUDY, SyntheticRunner(SIX_TRIALS, stop_at=5))
    assert not keras_tuner_files(tmp_path)


@pytest.mark.parametrize("damage", ["torn", "deleted", "foreign"])
def test_folder_of_keras_tuner_is_disposable(undisturbed, tmp_path, damage):
    few = study_of(dataclasses.replace(SIX, finishers=1))
    run(tmp_path, few, SyntheticRunner(SIX_TRIALS))
    files = keras_tuner_files(tmp_path)
    assert len(files) == 6 + 2
    for file in files:
        if damage == "deleted":
            file.unlink()
        else:
            file.write_text("{" if damage == "torn" else "[1, 2]")
    run(tmp_path, STUDY, SyntheticRunner(SIX_TRIALS))
    assert tables(tmp_path, STUDY) == tables(undisturbed, STUDY)
    assert [file.read_text() for file in keras_tuner_files(tmp_path)] == [
        file.read_text() for file in keras_tuner_files(undisturbed)
    ]
