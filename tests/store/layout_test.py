from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import Cell, UserError
from dps_tf.store import CellLayout, SweepLayout, layout
from dps_tf.store.layout import is_name


@given(st.text(max_size=8) | st.sampled_from([".", "..", "a/b", "a\n", "é", "", "a b"]))
def test_only_safe_names_become_paths(name):
    is_safe = bool(re.fullmatch(r"[A-Za-z0-9._-]+", name)) and name not in (".", "..")
    for attempt in (
        lambda name: SweepLayout("/s").cell(name).root,
        CellLayout("/c").log,
        CellLayout("/c").table,
    ):
        assert is_name(name) == is_safe
        if is_safe:
            assert name in str(attempt(name))
        else:
            with pytest.raises(UserError, match="cannot be part of a path"):
                attempt(name)


def test_every_path_lies_where_the_module_says():
    sweep = SweepLayout("/data/sweep/")
    cell = sweep.cell(Cell("mnist", "sgd", "none", 0, 8, 0.0).name)
    assert sweep.marker == "/data/sweep/.dps_tf"
    assert sweep.sweep == "/data/sweep/sweep.json"
    assert sweep.config == "/data/sweep/config.gin"
    assert sweep.scores == "/data/sweep/scores"
    assert cell.root == "/data/sweep/cells/mnist-sgd-none-seed0-b8-s0.0"
    inside = {
        name: getattr(cell, name).removeprefix(f"{cell.root}/")
        for name in (
            *("study", "logs", "states", "keras_tuner", "lock", "claims"),
            *("measurements", "closed"),
        )
    }
    assert inside == {
        "study": "study.json",
        "logs": "log",
        "states": "states",
        "keras_tuner": "keras_tuner",
        "lock": "lock",
        "claims": "claims",
        "measurements": "measurements.parquet",
        "closed": "closed.json",
    }
    assert cell.log("host-1") == f"{cell.root}/log/host-1.log"
    assert layout.segments(cell.log("a")) == f"{cell.root}/log/a.log.segments"
    for table in layout.CLOSING_TABLES:
        assert cell.table(table) == f"{cell.root}/{table}.parquet"


def test_a_relative_sweep_stays_where_it_was_after_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = SweepLayout("sweeps/a")
    monkeypatch.chdir("/")
    assert Path(sweep.root) == tmp_path / "sweeps" / "a"
    assert SweepLayout("gs://bucket/a/").cell("c").study == (
        "gs://bucket/a/cells/c/study.json"
    )
    with pytest.raises(UserError, match="empty"):
        SweepLayout("")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/tmp/a\udcff", r"the path '/tmp/a\\udcff' is not UTF-8"),
        ("gs://bucket/a\udcff", "is not UTF-8"),
        (f"/tmp/{'x' * 256}", "is too long: .* each name in it 255"),
        (f"/tmp/{'é' * 128}", "is too long"),
        (f"/tmp{'/name' * 1000}", "a path may have 4095 bytes"),
    ],
)
def test_a_path_that_no_system_takes_is_one_short_sentence(path, why):
    with pytest.raises(UserError, match=why) as caught:
        SweepLayout(path)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_the_longest_name_is_taken(tmp_path):
    folder = Path(SweepLayout(f"{tmp_path}/{'x' * 255}").root)
    folder.mkdir()
    assert folder.is_dir()
