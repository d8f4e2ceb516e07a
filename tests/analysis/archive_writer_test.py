from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.interchange.foreign_study import ArchiveRules
from dps_tf.analysis.interchange.writer import write_archive
from dps_tf.analysis.reduce import results
from dps_tf.core import Goal, UserError
from tests.analysis.archive_files import read_archive
from tests.analysis.synthetic import Truth, random_truth, tables


@pytest.mark.parametrize("finishers", [1, 3])
def test_own_studies_survive_a_round_trip(tmp_path, finishers):
    rng = np.random.default_rng(finishers)
    truths = [
        random_truth(
            rng,
            batch_size=b,
            finishers=finishers,
            sparsity=s,
            seed=seed,
            optimizer="nesterov",
            points={"learning_rate": 10 ** rng.uniform(-4, 0, 12)},
            space={"learning_rate": ["log", 1e-4, 1.0]},
        )
        for b, s, seed in ((8, 0.0, 0), (16, 0.0, 0), (8, 0.9, 0), (8, 0.0, 1))
    ]
    studies, trials, curves = tables(*truths)
    write_archive(studies, trials, curves, tmp_path)
    rules = ArchiveRules(keep_incomplete=True, infeasible_may_reach=True)
    read = read_archive(tmp_path, truths[0].goal, rules)
    keys = ["optimizer", "sparsity_method", "seed", "sparsity", "batch_size"]
    columns = ["steps_to_result", "bracket_low", "best_trial", "learning_rate"]
    columns += ["complete", "infeasible", "incomplete", "censored", "steps_bound"]
    mine = results(studies, trials).set_index(keys)[columns].sort_index()
    theirs = results(read.studies, read.trials).set_index(keys)[columns].sort_index()
    pd.testing.assert_frame_equal(mine, theirs)


def test_written_studies_have_the_documented_form(tmp_path):
    errors = np.array([[0.3, 0.1], [0.3, 0.2], [np.nan, np.nan]])
    truth = Truth(
        errors,
        optimizer="nesterov",
        points={"learning_rate": np.array([0.1, 0.2, 0.3])},
        space={"learning_rate": ["log", 1e-4, 1.0]},
    )
    [folder] = write_archive(*tables(truth), tmp_path, {"toy": ("mnist", "cnn")})
    assert folder == tmp_path / "mnist" / "cnn" / "nesterov_momentum" / "64"
    study = json.loads((folder / "study.json").read_text())
    assert study["optimizer"] == "nesterov_momentum" and study["train_steps"] == 200
    assert study["parameter_configs"]["learning_rate"]["scale"] == "LOG_SCALE"
    status = [
        json.loads((folder / str(t) / "metadata.json").read_text())["status"]
        for t in range(3)
    ]
    assert status == ["COMPLETE", "INCOMPLETE", "INFEASIBLE"]
    measured = pd.read_csv(folder / "0" / "measurements.csv")
    assert list(measured.columns) == ["step", "val/classification_error"]
    assert measured["val/classification_error"].tolist() == [0.3, 0.1]


def test_bounds_are_not_written_as_values(tmp_path):
    truth = Truth(np.array([[0.5, 0.4, 0.1]]), bounds=True)
    [folder] = write_archive(*tables(truth), tmp_path)
    measured = pd.read_csv(folder / "0" / "measurements.csv")
    assert measured["val/classification_error"].isna().tolist() == [True, True, False]
    read = read_archive(tmp_path, truth.goal)
    assert read.trials["steps_to_result"].iloc[0] == 300


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_another_study_is_never_overwritten(tmp_path):
    found = tables(Truth(np.array([[0.5, 0.1]])))
    [folder] = write_archive(*found, tmp_path)
    written = bytes_of(tmp_path)
    # The same once more is as good as nothing.
    write_archive(*found, tmp_path)
    assert bytes_of(tmp_path) == written
    other = tables(Truth(np.array([[0.5, 0.2]])))
    with pytest.raises(UserError, match="holds another study already"):
        write_archive(*other, tmp_path)
    assert bytes_of(tmp_path) == written
    (folder / "study.json").unlink()
    (folder / "7").mkdir()
    with pytest.raises(UserError, match="holds 7: write elsewhere"):
        write_archive(*found, tmp_path)
    with pytest.raises(UserError, match="cannot be part of a path"):
        write_archive(*found, tmp_path, {"toy": ("../x", "cnn")})


@pytest.mark.parametrize("kill_at", range(1, 9))
def test_an_archive_that_was_cut_short_holds_whole_studies_only(
    tmp_path, monkeypatch, kill_at
):
    truth = Truth(np.array([[0.5, 0.3, 0.1], [0.5, 0.4, 0.3], [0.5, 0.2, 0.1]]))
    found = tables(truth)
    write_archive(*found, tmp_path / "whole")
    expected = bytes_of(tmp_path / "whole")
    points, replace = itertools.count(1), Path.replace

    def killed(self, target):
        if next(points) == kill_at:
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    try:
        write_archive(*found, tmp_path / "cut")
        assert kill_at > len(expected)
    except KeyboardInterrupt:
        with pytest.raises(UserError, match="there is no study.json"):
            read_archive(tmp_path / "cut", truth.goal)
    monkeypatch.setattr(Path, "replace", replace)
    write_archive(*found, tmp_path / "cut")
    left = bytes_of(tmp_path / "cut")
    assert {n: d for n, d in left.items() if ".writing" not in n} == expected
    read = read_archive(tmp_path / "cut", truth.goal)
    assert read.trials["steps_to_result"].tolist()[0] == 300


def test_another_precision_has_a_folder_of_its_own_and_is_read_back(tmp_path):
    errors = np.array([[0.3, 0.1], [0.3, 0.2]])
    made = tables(Truth(errors, points={"learning_rate": np.array([0.1, 0.2])}))
    half = [frame.assign(precision="mixed_bfloat16") for frame in made]
    both = [pd.concat(pair, ignore_index=True) for pair in zip(made, half, strict=True)]
    plain, folder = write_archive(*both, tmp_path, {"toy": ("mnist", "cnn")})
    assert plain == tmp_path / "mnist" / "cnn" / "sgd" / "64"
    assert folder == tmp_path / "mixed_bfloat16" / "mnist" / "cnn" / "sgd" / "64"
    goal = Goal("validation/classification_error", 0.1)
    read = read_archive(tmp_path, goal)
    for frame in (read.studies, read.trials, read.curves):
        assert set(frame["precision"]) == {"float32", "mixed_bfloat16"}
    # What others wrote says nothing of it.
    fields = json.loads((folder / "study.json").read_text())
    del fields["precision"]
    (folder / "study.json").write_text(json.dumps(fields))
    assert set(read_archive(folder.parents[3], goal).studies["precision"]) == {
        "float32"
    }
