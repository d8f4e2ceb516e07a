"""Torn, empty, deleted or flipped files: told, set aside, and the same result."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.analysis import loading
from dps_tf.core import Space, UserError
from dps_tf.tuning.interruption import Interrupted
from tests.made_up.studies import (
    SIX,
    SIX_TRIALS,
    SyntheticRunner,
    launch,
    reader_of,
    study_of,
    tables,
)

pytestmark = pytest.mark.fault

STUDY = study_of(SIX)
KINDS = {
    "begun": ["torn", "empty", "flipped"],
    "closed": ["flipped", "torn", "empty"],
}


@pytest.fixture(scope="module")
def closed(tmp_path_factory) -> Path:
    """A sweep directory whose study is closed."""
    directory = tmp_path_factory.mktemp("closed")
    launch(directory, [STUDY], SyntheticRunner(SIX_TRIALS))
    return directory


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A sweep directory whose study was interrupted twice, half way."""
    directory = tmp_path_factory.mktemp("begun")
    for slices in (8, 8):
        runner = SyntheticRunner(SIX_TRIALS, slice_steps=5, stop_at=slices)
        with pytest.raises(Interrupted):
            launch(directory, [STUDY], runner)
    return directory


def copy_of(directory: Path, place: Path) -> Path:
    shutil.copytree(directory, place / "sweep")
    return place / "sweep"


def files_of(directory: Path) -> list[str]:
    """Returns every file of a sweep, relative to its directory."""
    return sorted(
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file()
    )


def cell_of(directory: Path) -> Path:
    return Path(reader_of(directory, STUDY).layout.root)


def notes_of(said: list[str]) -> list[str]:
    """Returns all lines but that with the result."""
    return [line for line in said if not line.startswith(f"{STUDY.cell.name}: ")]


def damage(path: Path, kind: str, position: float = 0.6) -> None:
    data = bytearray(path.read_bytes())
    if kind == "deleted":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "torn":
        path.write_bytes(data[: max(1, int(len(data) * position))])
    else:
        bit = int(len(data) * 8 * position)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)


def numbers(directory: Path) -> tuple[list, tuple[str, ...]]:
    """Returns the results of closed cells as analysis reads them, and problems."""
    try:
        found = loading.load(directory)
    except UserError as error:
        return [], (str(error),)
    closed = found.studies["closed"].astype(bool).to_numpy()
    return found.results[closed].astype(str).to_numpy().tolist(), found.problems


# What a result does not hang on; locks hold nothing.
_SILENT = ("keras_tuner", "lock", "claims", "work.parquet")


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("state", ["begun", "closed"])
def test_damage_to_any_file_is_told_and_leaves_the_result(
    request, closed, tmp_path, state, is_there
):
    original = request.getfixturevalue(state)
    expected, known = tables(closed, STUDY), numbers(original)
    assert known[1] == () and bool(known[0]) == (state == "closed")
    # Of files whose names differ in numbers only, the first and the last.
    names = files_of(original)
    both = [{re.sub(r"\d+", "0", n): n for n in some} for some in (names, names[::-1])]
    # A file that is there is torn, empty or flipped, and otherwise in the other state.
    kinds = itertools.cycle(KINDS[state] if is_there else ["deleted"])
    for name in sorted({name for alike in both for name in alike.values()}):
        if is_there and not (original / name).stat().st_size:
            continue
        kind = next(kinds)
        place = tmp_path / name.replace("/", "_")
        directory = copy_of(original, place)
        damage(directory / name, kind)
        read, problems = numbers(directory)
        # Without closed.json a study is an open one, as after a kill while it closed.
        is_told = problems or name.endswith("closed.json")
        assert read == known[0] or (read == [] and is_told), name
        said, runner = [], SyntheticRunner(SIX_TRIALS)
        outcome = launch(directory, [STUDY], runner, say=said.append)
        assert tables(directory, STUDY) == expected, name
        trial, newer = name.partition(".step-")[0], files_of(original)
        is_spare = any(f.startswith(f"{trial}.step-") and f > name for f in newer)
        if state == "begun" or Path(name).parent.name not in ("log", "states"):
            _check_told(name, kind, is_spare, directory, notes_of(said))
        else:
            assert not outcome.ran, name  # nothing is asked of them any more
        assert (directory / name).exists() or not name.startswith((".", "sweep.json"))
        # Repaired for good.
        again = launch(directory, [STUDY], SyntheticRunner(SIX_TRIALS))
        assert not again.ran, name
        shutil.rmtree(place)


def _check_told(
    name: str, kind: str, is_spare: bool, directory: Path, said: list[str]
) -> None:
    if kind == "deleted" and name in (".dps_tf", "sweep.json"):
        assert f"note: {directory / name} is missing" in said[0]
    in_cell = name.split("/", 2)[-1] if name.startswith("cells/") else ""
    if not in_cell or in_cell.startswith(_SILENT):
        return  # written anew at each start
    if kind == "deleted" and in_cell == "closed.json":
        return  # as a kill just before closing leaves it: the study closes again
    if is_spare or (kind == "deleted" and said == []):
        # The state before it takes its place; without one it is told.
        assert in_cell.startswith("states/"), name
        return
    assert said, name
    assert all(sentence.startswith("note: ") for sentence in said)
    assert all(sentence.endswith(".") for sentence in said)
    if kind != "deleted":
        aside = [f for f in files_of(directory) if f.startswith(f"{name}.damaged-")]
        assert aside or in_cell.startswith("log/"), name


@settings(max_examples=10)
@given(st.floats(0, 1, exclude_max=True), st.sampled_from(["flipped", "torn"]))
def test_damage_anywhere_in_a_log_leaves_the_result(
    begun, closed, tmp_path_factory, position, kind
):
    directory = copy_of(begun, tmp_path_factory.mktemp("log"))
    damage(cell_of(directory) / "log/main.log", kind, position)
    launch(directory, [STUDY], SyntheticRunner(SIX_TRIALS, slots=2))
    assert tables(directory, STUDY) == tables(closed, STUDY)
    shutil.rmtree(directory)


@pytest.mark.parametrize("lost", ["log", "states", "study.json"])
def test_loss_of_whole_folders_leaves_the_result(begun, closed, tmp_path, lost):
    directory = copy_of(begun, tmp_path)
    place = cell_of(directory) / lost
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    said: list[str] = []
    launch(directory, [STUDY], SyntheticRunner(SIX_TRIALS), say=said.append)
    assert tables(directory, STUDY) == tables(closed, STUDY)
    assert notes_of(said)


def test_intact_trials_are_not_trained_again_for_a_damaged_one(begun, tmp_path):
    directory = copy_of(begun, tmp_path)
    newest = sorted((cell_of(directory) / "states").iterdir())[-1]
    number = int(newest.name.split("-")[1].split(".")[0])
    damage(newest, "flipped")
    runner = SyntheticRunner(SIX_TRIALS)
    launch(directory, [STUDY], runner)
    first = {}
    for turn in runner.turns:
        first.setdefault(turn.trial, turn.first)
    assert all(step > 0 for trial, step in first.items() if trial != number)


@pytest.mark.parametrize("lost", ["torn", "deleted"])
def test_logs_of_another_configuration_are_never_taken_for_this_ones(
    begun, tmp_path, lost
):
    directory = copy_of(begun, tmp_path)
    damage(cell_of(directory) / "study.json", lost)
    other = study_of(SIX, space=Space.from_dict({"learning_rate": ("log", 1e-3, 1.0)}))
    runner = SyntheticRunner(SIX_TRIALS)
    with pytest.raises(UserError, match="logs of another study"):
        launch(directory, [other], runner)
    assert runner.turns == []
    # It can still be continued as what it was, or extended.
    more = study_of(dataclasses.replace(SIX, finishers=3))
    assert launch(directory, [more], SyntheticRunner(SIX_TRIALS)).ran


def test_foreign_files_are_left_alone(begun, closed, tmp_path):
    directory = copy_of(begun, tmp_path)
    notes = [
        directory / "notes.txt",
        cell_of(directory) / "notes.txt",
        cell_of(directory) / "states/notes.txt",
        cell_of(directory) / "log/notes.txt",
    ]
    for note in notes:
        note.write_text("mine")
    launch(directory, [STUDY], SyntheticRunner(SIX_TRIALS))
    assert tables(directory, STUDY) == tables(closed, STUDY)
    assert [note.read_text() for note in notes] == ["mine"] * 4
