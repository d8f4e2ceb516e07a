"""The figure of noise scales: a point for each curve at its noise scale and c1/c2."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from dps_tf.analysis.fit_table import fit_table, read_table
from dps_tf.analysis.interchange.foreign_files import read_csv
from tests.packaging.source_tree import SOURCE_TREE

FOLDER = SOURCE_TREE / "gin_configs" / "optimizers"
STEM = "fashion_mnist_fc"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("noise", FOLDER / "noise_scales.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_points_are_the_noise_scales_and_fits_of_curves(script, tmp_path):
    cells = read_csv(FOLDER / f"{STEM}.csv").query("seed == 0")
    cells.to_csv(tmp_path / f"{STEM}.csv", index=False)
    wide = read_csv(FOLDER / f"{STEM}_measurements.csv")
    for name, factor in (("gradient_square", 3.0), ("noise_trace", 12.0)):
        wide[f"optimizer_{name}"] = factor * wide[name]
    wide["optimizer_noise_scale"] = 4.0 * wide["noise_scale"]
    wide.to_csv(tmp_path / f"{STEM}_measurements.csv", index=False)
    figure = script.draw([tmp_path / STEM])
    fits = fit_table(read_table(tmp_path / f"{STEM}.csv")).curves
    critical = sorted(each.fit.critical_batch_size.value for each in fits)
    points = []
    for axis in figure.axes[:2]:
        marks = [line for line in axis.get_lines() if line.get_marker() == "o"]
        points.append(np.concatenate([line.get_xydata() for line in marks]))
        np.testing.assert_allclose(sorted(points[-1][:, 1]), critical)
    np.testing.assert_allclose(points[1][:, 0], 4 * points[0][:, 0])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    optimizers = ["adam", "lamb", "muon", "nesterov", "sgd", "soap"]
    assert [label for label in labels if label] == [*optimizers, STEM]
    assert labels.index(STEM) == len(labels) / 2
