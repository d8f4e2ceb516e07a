from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.store import (
    CLOSING_TABLES,
    CellLayout,
    FileSystem,
    LocalFiles,
    StudyReader,
    close_study,
    reopen_study,
)
from tests.made_up.sweeps import closing
from tests.store.faulty_files import at_every_write_point
from tests.store.object_store import MemoryFiles

OLD = closing()
NEW = {
    **OLD,
    "study": {**OLD["study"], "points": 4},
    "trials": OLD["trials"].assign(end_step=800),
}


def read_closed(files: FileSystem, directory: str, wanted=CLOSING_TABLES):
    """Returns the tables of a closed study, or None, and what is damaged."""
    study = StudyReader(files, CellLayout(directory))
    return study.closed(wanted), study.problems


def points(closed) -> int:
    """Returns what the table of studies says of a study."""
    return int(closed["studies"]["points"].iloc[0])


def _closed() -> tuple[MemoryFiles, str]:
    files = MemoryFiles()
    close_study(files, "s", **OLD)
    return files, "s"


def test_a_closed_study_is_read_as_it_was():
    files, directory = _closed()
    assert StudyReader(files, CellLayout(directory)).is_closed
    closed, problems = read_closed(files, directory)
    assert problems == []
    assert closed["studies"].to_dict("records") == [OLD["study"]]
    assert closed["trials"]["outcome"].tolist() == ["complete", "censored", "failed"]
    assert set(closed) == {"studies", *CLOSING_TABLES}
    closed, _ = read_closed(files, directory, ["work"])
    assert set(closed) == {"studies", "work"}


def test_an_open_study_is_no_problem():
    assert read_closed(MemoryFiles(), "s") == (None, [])
    assert reopen_study(MemoryFiles(), "s") == []
    assert not StudyReader(MemoryFiles(), CellLayout("s")).is_closed


def test_closing_again_with_the_same_content_writes_nothing():
    files, directory = _closed()
    before = dict(files.objects)
    close_study(files, directory, **OLD)
    assert files.objects == before


@pytest.mark.parametrize(
    ("mode", "first"),
    [("kill", True), ("kill", False), ("full", False), ("torn", False)],
)
def test_a_failure_leaves_a_study_closed_or_open(tmp_path, mode, first):
    def act(files, folder):
        if not first:
            close_study(LocalFiles(), folder, **OLD)
        close_study(files, folder, **NEW)

    expected = MemoryFiles()
    close_study(expected, "s", **NEW)
    seen = set()
    for _, folder in at_every_write_point(tmp_path, mode, act):
        closed, problems = read_closed(LocalFiles(), folder)
        if problems:
            seen.add("damaged")
            assert mode == "torn"
        else:
            seen.add("open" if closed is None else points(closed))
        # The command that is run again ends as if nothing had happened.
        close_study(LocalFiles(), folder, **NEW)
        closed, problems = read_closed(LocalFiles(), folder)
        assert problems == [] and points(closed) == 4
        for name in CLOSING_TABLES:
            data = LocalFiles().read_bytes(CellLayout(folder).table(name))
            assert data == expected.read_bytes(CellLayout("s").table(name))
    assert {"open", 4} <= seen
    assert (3 in seen) == (not first)


@settings(max_examples=20)
@given(st.sampled_from([*CLOSING_TABLES, "closed"]), st.data())
def test_damage_to_a_closed_study_is_told_and_mended(name, data):
    files, directory = _closed()
    cell = CellLayout(directory)
    path = cell.closed if name == "closed" else cell.table(name)
    damaged = bytearray(files.read_bytes(path))
    position = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[position // 8] ^= 1 << position % 8
    files.write_atomic(path, bytes(damaged))
    closed, problems = read_closed(files, directory)
    assert closed is None and len(problems) == 1 and path in problems[0]
    assert reopen_study(files, directory) == [f"{path}.damaged-1"]
    assert read_closed(files, directory) == (None, [])
    close_study(files, directory, **OLD)
    assert read_closed(files, directory)[1] == []


@pytest.mark.parametrize("name", CLOSING_TABLES)
def test_a_deleted_table_of_a_closed_study_is_told(name):
    files, directory = _closed()
    files.remove(CellLayout(directory).table(name))
    closed, problems = read_closed(files, directory)
    assert closed is None and "missing" in problems[0]
    close_study(files, directory, **OLD)
    assert read_closed(files, directory)[1] == []


def test_a_table_of_another_closing_is_told():
    files, directory = _closed()
    other = MemoryFiles()
    close_study(other, "s", **NEW)
    path = CellLayout(directory).table("trials")
    files.write_atomic(path, other.read_bytes(path))
    closed, problems = read_closed(files, directory)
    assert closed is None and "closed the study" in problems[0]


def test_a_study_that_cannot_be_a_table_leaves_the_old_closing():
    files, directory = _closed()
    with pytest.raises(ValueError):
        close_study(files, directory, **{**NEW, "work": pd.DataFrame()})
    assert points(read_closed(files, directory)[0]) == OLD["study"]["points"]
