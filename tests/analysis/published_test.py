"""Tables of published curves: what is read and refused, and the digitized one."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.law import Observations
from dps_tf.analysis.published import (
    COLUMNS,
    checked_published,
    fits,
    read_published,
    shipped_file,
)
from dps_tf.analysis.regimes import (
    maximum_useful,
    perfect_scaling,
)
from dps_tf.core import UserError
from tests.packaging.source_tree import SOURCE_TREE

SHALLUE = "shallue2019/published.csv"
# Fits of the digitized curves made apart from this package (soft-L1 of scale 0.1 on
# log K): c1, c2, c1/c2, rms residual in octaves, end of perfect scaling on the points
# at 20 and at 50 %, smallest batch on the plateau at 20 and 10 %.
TABLE = """
mnist-simple_cnn_base-sgd 4.6e4 286 161 0.16 4 32 4096 4096
mnist-simple_cnn_base-momentum 4.7e4 148 319 0.09 4 64 4096 4096
mnist-simple_cnn_base-nesterov 7.1e4 165 432 0.12 32 128 32768 55000
fashion_mnist-simple_cnn_base-nesterov 5.1e4 163 310 0.12 8 128 2048 2048
cifar_10-resnet_8-sgd 2.31e5 3.27e3 71 0.10 8 32 512 512
cifar_10-resnet_8-nesterov 2.07e5 695 298 0.25 128 256 1024 1024
imagenet-resnet_50-nesterov 9.35e7 5.1e3 1.84e4 0.15 256 8192 65536 65536
open_images_v4-resnet_50-nesterov 6.9e7 4.9e3 1.42e4 0.21 64 128 16384 32768
imagenet-vgg_11-nesterov 5.25e7 1.65e4 3.2e3 0.23 1024 1024 32768 32768
lm1b-transformer_base-nesterov 8.7e6 1.07e4 815 0.05 128 512 4096 8192
common_crawl-transformer_base-nesterov 2.0e7 3.5e4 576 0.17 64 256 4096 4096
lm1b-transformer_shallow-sgd 2.9e7 1.49e5 194 0.03 32 128 2048 8192
lm1b-transformer_shallow-momentum 3.6e7 3.5e4 1.02e3 0.18 32 128 8192 8192
lm1b-transformer_shallow-nesterov 3.5e7 2.1e4 1.63e3 0.13 512 1024 4096 4096
lm1b-lstm-nesterov 1.4e7 1.86e5 75 0.05 16 64 1024 1024
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_intervals_of_published_curves_hold_the_fits_that_were_stated(row):
    fit = fits(read_published(SHALLUE, [row[0]]))[row[0]]
    stated = [float(text) for text in row[1:5]]
    for e, value in zip(
        (fit.c1, fit.c2, fit.critical_batch_size), stated[:3], strict=True
    ):
        assert e.low < value < e.high
    assert fit.rms == pytest.approx(stated[3], abs=0.05)


def test_a_curve_of_two_batch_sizes_is_drawn_and_not_fitted():
    both = read_published(SHALLUE, ["mnist-simple_cnn_base-*"])
    first = both["curve"].iloc[0]
    short = both[(both["curve"] != first) | (both["batch_size"] <= 4)]
    assert (short["curve"] == first).sum() == 2
    assert list(fits(short)) == list(dict.fromkeys(both["curve"]))[1:] != []


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_regimes_of_published_curves_are_those_stated(row):
    curve = read_published(SHALLUE, [row[0]])
    points = Observations.of(curve["batch_size"], curve["steps_to_result"])
    found = [
        perfect_scaling(points, 0.2),
        perfect_scaling(points, 0.5),
        maximum_useful(points, 0.2)[0],
        maximum_useful(points, 0.1)[0],
    ]
    assert found == [float(text) for text in row[5:]]


def test_digitized_curves_carry_source_goal_and_error():
    frame = read_published(SHALLUE)
    assert len(frame) == 154 and frame["curve"].nunique() == 15
    assert frame["source"].str.startswith("Shallue et al. 2019 Fig").all()
    assert (frame["relative_error"].notna() | frame["note"].notna()).all()
    precision = frame[frame["curve"].str.startswith("open_images")]
    assert set(precision["goal"]) == {"validation/average_precision > 0.31"}


def test_the_studies_of_the_archive_add_up_to_what_its_readme_says():
    frame = pd.read_csv(shipped_file("shallue2019/published_studies.csv"))
    assert len(frame) == 454
    key = ["workload", "optimizer"]
    assert frame.groupby(key).ngroups == 35
    sums = frame[["complete", "incomplete", "infeasible"]].sum()
    assert list(sums) == [108_194, 43_508, 42_697]
    # Every digitized point is of a study that is there, and of no more trials.
    joined = read_published(SHALLUE).merge(frame, on=[*key, "batch_size"], how="left")
    assert (joined["complete"] >= joined["trials"]).all()


GOOD = "curve,batch_size,steps_to_result\na,16,1000\na,64,400\nb,16,900\n"


def test_a_table_of_anyone_needs_three_columns(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_text(GOOD)
    table = read_published(path)
    assert table["steps_to_result"].tolist() == [1000.0, 400.0, 900.0]
    assert table["relative_error"].isna().all() and set(table["goal"]) == {""}
    assert read_published(path, ["b*"])["curve"].tolist() == ["b"]
    path.write_text(GOOD.replace("b,", "[b],"))
    assert read_published(path, ["[b]"])["curve"].tolist() == ["[b]"]


def test_results_of_this_package_are_curves_with_the_names_of_a_fit():
    path = SOURCE_TREE / "gin_configs" / "lee2021" / "mnist_curves.csv"
    results = read_csv(path)
    results.loc[results.index[0], "steps_to_result"] = np.nan
    rows = {tuple(row) for row in read_published(path)[list(COLUMNS)].to_numpy()}
    fewer = checked_published(results)
    assert len(rows) == len(results) == len(fewer) + 1
    one = results.query("optimizer == 'sgd' and sparsity == 0.9 and seed == 1")
    name = "optimizer sgd, sparsity_method snip, seed 1, sparsity 0.9"
    for size, steps in one[["batch_size", "steps_to_result"]].to_numpy():
        assert (name, size, steps) in rows


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "theirs.csv' is not a CSV table"),
        ("curve,batch_size\na,16\n", "no column 'steps_to_result'"),
        ("curve,batch_size,steps_to_result\n", "has no rows"),
        (f"{GOOD}a,64,390\n", "'a' has two rows for batch size 64"),
        (f"{GOOD}a,1.5,390\n", "batch_size is '1.5' in row 4"),
        (f"{GOOD}a,0,390\n", "batch_size is '0' in row 4"),
        (f"{GOOD}a,128,none\n", "steps_to_result is 'none' in row 4"),
        (f"{GOOD}a,128,\n", "steps_to_result is empty in row 4"),
        (f"{GOOD}a,128,inf\n", "steps_to_result is 'inf' in row 4"),
        (f"{GOOD},128,3\n", "curve is empty in row 4"),
        (GOOD.replace("\n", ",\n").replace(",\n", ",relative_error\n", 1), None),
        (
            "curve,batch_size,steps_to_result,relative_error\na,16,1000,5%\n",
            "relative_error is '5%' in row 1",
        ),
    ],
)
def test_a_mistake_in_a_table_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "theirs.csv"
    path.write_text(text)
    if said is None:
        assert read_published(path)["relative_error"].isna().all()
        return
    with pytest.raises(UserError, match=re.escape(said)) as error:
        read_published(path)
    assert "\n" not in str(error.value)


def test_names_that_are_no_table_or_curve_are_refused():
    with pytest.raises(UserError, match=f"'nowhere.csv': .*{SHALLUE}"):
        read_published("nowhere.csv")
    with pytest.raises(UserError, match="mnist-simple_cnn_base-sgd"):
        read_published(SHALLUE, ["mnist-simple_cnn_base-sdg"])
