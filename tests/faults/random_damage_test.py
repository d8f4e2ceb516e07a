"""Any damage to any file of a sweep: it is told, and the numbers are the same or none.

A file of a sweep, open or closed, is flipped, torn, emptied, deleted, doubled or
replaced by another; then everything that reads is asked, and the sweep is run again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.analysis import loading
from dps_tf.analysis.sweep_status import sweep_status
from dps_tf.core import UserError
from dps_tf.probing import read_recorded
from dps_tf.store import LocalFiles, StoreError, SweepLayout, SweepReader
from tests.faults.damage_test import STUDY, begun, closed, files_of  # noqa: F401
from tests.tuning.studies import SIX_TRIALS, run_in_sweep, tables
from tests.tuning.synthetic_runner import SyntheticRunner

pytestmark = pytest.mark.fault

FILES = LocalFiles()
EXAMPLES = 12 if os.environ.get("DPS_TF_SLOW") else 2
KINDS = ("flipped", "torn", "emptied", "deleted", "doubled", "junk", "replaced")
# What no number comes from.
WITHOUT_RESULTS = ("keras_tuner", "lock", "claims", "config.gin", "work.parquet")


def damage(root: Path, name: str, kind: str, position: float, other: str) -> None:
    path = root / name
    data = bytearray(path.read_bytes())
    if kind == "deleted":
        path.unlink()
        return
    at = int(position * len(data))
    if kind == "flipped" and data:
        data[at] ^= 1 << int(position * 8e6) % 8
    changed = {
        "torn": bytes(data[:at]),
        "emptied": b"",
        "doubled": bytes(data + data),
        "junk": bytes(data[:at]) + b"\x00\xff{}\n" + bytes(data[at:]),
        "replaced": (root / other).read_bytes(),
    }.get(kind, bytes(data))
    path.write_bytes(changed)


def numbers(root: Path) -> tuple[dict[str, list], list[str]]:
    """Returns what a closed cell's tables and status tell, and what is said beside."""
    sweep = SweepReader(FILES, str(root))
    cells = sweep_status(FILES, sweep)
    status = {
        cell.name: (cell.steps_to_result, cell.bracket_low)
        for cell in cells
        if cell.closed
    }
    # Without closed.json a study is an open one, as after a kill while it was closed.
    opened = [cell.line for cell in cells if "but not closed: run" in cell.line]
    loaded = loading.load(root)
    finished = loaded.studies["closed"].astype(bool)
    results = loaded.results[finished.to_numpy()]
    measured, refused = to_be_measured(root, list(sweep.studies))
    return (
        {
            "status": sorted(status.values()),
            "load": results.astype(str).values.tolist(),
            "measure": measured,
        },
        [*sweep.problems, *loaded.problems, *opened, *refused],
    )


def to_be_measured(root: Path, cells: list[str]) -> tuple[list[str], list[str]]:
    """Returns what `measure` would train again and compare with, and refusals."""
    found, refused = [], []
    for cell in cells:
        try:
            study = read_recorded(FILES, SweepLayout(str(root)), cell)
        except UserError as error:
            refused.append(str(error))
            continue
        if study is not None:
            asked = study.specification, study.training_inputs, study.environments
            found.append(repr((asked, study.trial(study.best_trial()))))
    return found, refused


def check(original: Path, before: dict, expected: dict, change: tuple) -> None:
    name, kind, position, other = change
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(original, Path(folder) / "sweep"))
        data = (root / name).read_bytes()
        damage(root, name, kind, position, other)
        path = root / name
        is_same = path.exists() and path.read_bytes() == data
        try:
            after, told = numbers(root)
        except UserError as error:
            assert "\n" not in str(error)
        else:
            # A closed cell gives its numbers, or none and says why.
            for reader, values in before.items():
                assert after[reader] in (values, []), (reader, told)
            if after != before:
                assert told, "a closed cell is gone without a word"
        said: list[str] = []
        try:
            run_in_sweep(root, STUDY, SyntheticRunner(SIX_TRIALS), said=said)
        except (UserError, StoreError) as error:
            assert "\n" not in str(error)
            assert kind == "replaced", "only another file's content is refused"
            return
        assert tables(root, STUDY) == expected
        in_cell = name.split("/", 2)[-1]
        if not is_same and in_cell.startswith("study.json"):
            assert said, "the record of a study was repaired in silence"
        assert numbers(root)[0]["load"]


def changes(root: Path, kind: str) -> st.SearchStrategy[tuple]:
    """Returns damages of a kind: to each folder's files as often as to another's."""
    names = [n for n in files_of(root) if not any(p in n for p in WITHOUT_RESULTS)]
    folders = sorted({str(Path(name).parent) for name in names})
    damaged = st.sampled_from(folders).flatmap(
        lambda folder: st.sampled_from(
            [name for name in names if str(Path(name).parent) == folder]
        )
    )
    return st.tuples(
        damaged,
        st.just(kind),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(names),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["begun", "closed"])
def test_every_damage_is_told_and_no_number_changes(request, closed, state, kind):  # noqa: F811
    original = request.getfixturevalue(state)
    expected = tables(closed, STUDY)
    before, told = numbers(original)
    assert not told

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(changes(original, kind))
    def attack(change):
        check(original, before, expected, change)

    attack()
