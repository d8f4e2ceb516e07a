"""The atlas: steps are its facts, tables are fits of them, sentences are of tables."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares

from tests.packaging.source_tree import SOURCE_TREE

FOLDER = SOURCE_TREE / "gin_configs" / "atlas"
README = FOLDER / "README.md"


@pytest.fixture(scope="module")
def atlas():
    spec = importlib.util.spec_from_file_location("atlas", FOLDER / "atlas.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name):
    return pd.read_csv(FOLDER / f"{name}.csv", dtype=None)


def medians(name):
    rows = read("steps").query("curve == @name")
    return rows.groupby("batch_size")[["steps_to_result", "bracket_low"]].median()


def test_steps_are_those_of_the_facts(atlas, tmp_path):
    atlas.steps().to_csv(tmp_path / "steps.csv", index=False, lineterminator="\n")
    assert (tmp_path / "steps.csv").read_bytes() == (FOLDER / "steps.csv").read_bytes()
    atlas.same_lists(atlas.facts()).to_csv(
        tmp_path / "same.csv", index=False, lineterminator="\n"
    )
    same = (FOLDER / "same_lists.csv").read_bytes()
    assert (tmp_path / "same.csv").read_bytes() == same


@pytest.mark.parametrize(
    "curve,size,steps",
    [
        # By hand from the lists and the units, in steps.
        ("ResNet-50", 32768, 56 * 1281167 / 32768),
        ("DLRM", 55296, 0.9 * 4195197692 / 55296),
        ("GPT-3 175B", 4096, 1258291200 / 2048 / 4096),
        ("Llama 3.1 8B", 16, 159744 / 16),
        ("R-GAT", 65536, 1.2 * 94605600 / 65536),
        ("U-Net3D", 64, 399616 / 64),
    ],
)
def test_units_are_turned_into_steps(curve, size, steps):
    assert medians(curve).loc[size, "steps_to_result"] == pytest.approx(steps, rel=0.03)


def test_brackets_are_evaluation_intervals():
    steps = read("steps")
    assert (steps["bracket_low"].dropna() >= 0).all()
    rows = steps.dropna(subset="bracket_low")
    gap = (rows["steps_to_result"] - rows["bracket_low"]) * rows["batch_size"]
    of = gap.groupby(rows["curve"])
    assert of.max()["FLUX.1"] == pytest.approx(262144, rel=1e-3)
    assert of.max()["ResNet-50"] == pytest.approx(4 * 1281167, rel=1e-3)
    assert of.min()["SSD ResNet-34"] == pytest.approx(5 * 117266, rel=1e-3)


@pytest.mark.parametrize("name", ["BERT-large", "ResNet-50", "RNN-T", "R-GAT"])
def test_a_plain_fit_of_the_medians_lies_in_the_interval(name):
    """Least squares of log K* at the middles of the brackets, without dps_tf."""
    points = medians(name)
    k = points.mean(axis=1).to_numpy()
    size = points.index.to_numpy(float)

    def residuals(logs):
        return np.log(np.exp(logs[0]) / size + np.exp(logs[1])) - np.log(k)

    found = least_squares(residuals, [np.log(k[0] * size[0]), np.log(k[-1])]).x
    row = read("fits").set_index("curve").loc[name]
    critical = np.exp(found[0] - found[1])
    assert row["critical_low"] < critical < row["critical_high"]
    assert critical == pytest.approx(row["critical"], rel=0.1)


def test_benchmarks_are_enough_and_each_has_a_unit_with_its_source(atlas):
    fits = read("fits")
    public = fits[(fits["source"] == "MLPerf") & ~fits["is_variant"]]
    assert len(public) >= 18
    units = read("benchmarks")
    assert units[["unit_source", "interval_source"]].notna().all(axis=None)
    named = set(atlas.facts()["benchmark"])
    assert named == set(units["benchmark"])


def test_words_follow_from_the_numbers(atlas):
    table = read("comparisons")
    for question, rows in table.groupby("question"):
        margin = 0.1 if question == "exponent 1" else 1.25
        for row in rows.itertuples():
            word = atlas._word(row.claim, row.p, row.value > 1, row.within, margin)
            assert word.split(" within")[0] == row.word.split(" within")[0], row


def test_residuals_at_the_largest_batch_size_are_those_of_the_fits():
    """By hand from medians and constants; their mean is what is compared."""
    found, fits = read("largest"), read("fits").set_index("curve")
    for name in ("ResNet-50", "Llama 3.1 8B", "RetinaNet"):
        last = medians(name).iloc[-1]
        law = fits.loc[name, "c1"] / last.name + fits.loc[name, "c2"]
        row = found.set_index("curve").loc[name]
        assert row["octaves"] == pytest.approx(np.log2(last.mean() / law), abs=0.003)
        assert row["over_critical"] == pytest.approx(
            last.name / fits.loc[name, "critical"], rel=1e-3
        )
    bounds = fits[~(fits["critical_low"] > 0) | ~np.isfinite(fits["critical_high"])]
    open_ends = set(bounds.index[~bounds["is_variant"]])
    assert set(found[found["over_critical"].isna()]["curve"]) == open_ends
    compared = read("comparisons").query("question == 'largest'")["value"].to_list()
    means = [
        2 ** rows[column].mean()
        for _, rows in found.groupby("source")
        for column in ("octaves", "predicted")
    ]
    assert compared == pytest.approx(means, rel=1e-3)


def test_the_page_holds_the_tables_and_its_numbers(atlas):
    text = re.sub(r"\s+", " ", README.read_text(encoding="utf-8"))
    rows = r"^\| (?!curve|---|K\\\*|the law|its pred).*$"
    shown = re.findall(rows, README.read_text("utf-8"), re.MULTILINE)
    found = pd.read_csv(FOLDER / "table.csv", dtype=str)
    table = {f"| {' | '.join(row)} |" for row in found.to_numpy()}
    assert len(shown) == 6 and set(shown) <= table
    for sentence in atlas.sentences():
        assert sentence in text, sentence
