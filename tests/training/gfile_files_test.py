"""Does a sweep directory on an object store keep what the store promises?"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from dps_tf.core import UserError
from dps_tf.store import (
    CLOSING_TABLES,
    MARKER,
    CellLayout,
    LocalFiles,
    LockLost,
    Locks,
    Owner,
    StoreError,
    Timing,
    close_study,
    open_log,
    read_closed,
    read_log,
)
from dps_tf.training import GFileFiles, files_for, gfile_files
from tests.store import frames
from tests.store.faulty_files import Killed
from tests.training.object_gfile import ObjectGfile

FOLDER = "gs://bucket/sweep"


def _objects(store: ObjectGfile | None = None) -> GFileFiles:
    store = store or ObjectGfile()
    return GFileFiles(store, store.put_if_absent)


def _create_on_disk(path: str, data: bytes) -> bool:
    """Creates a file of this machine, as the client of a store would an object."""
    # An object store knows no folders.
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        with Path(path).open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


# TensorFlow's own `ram://` will not do: it appends to a file that is written again.
@pytest.fixture(params=["gs", "local"])
def place(request, tmp_path):
    if request.param == "gs":
        return _objects(), FOLDER
    return GFileFiles(create=_create_on_disk), f"{tmp_path}/été 1"


def test_the_directory_chooses_its_files():
    assert isinstance(files_for("gs://bucket/sweep"), GFileFiles)
    assert isinstance(files_for("sweeps/mnist"), LocalFiles)


def test_what_was_written_is_read_and_replaced(place):
    files, folder = place
    files.write_atomic(f"{folder}/deep/er/a", b"one")
    files.write_atomic(f"{folder}/deep/er/a", b"two")
    assert files.read_bytes(f"{folder}/deep/er/a") == b"two"
    files.write_many({f"{folder}/{n}": bytes([n]) for n in range(40)})
    assert files.read_bytes(f"{folder}/39") == bytes([39])
    assert files.list_names(folder) == sorted([*map(str, range(40)), "deep"])
    assert files.exists(f"{folder}/deep") and files.exists(f"{folder}/39")
    assert files.modified_time(f"{folder}/39") >= 0
    files.make_directory(f"{folder}/empty")


@pytest.mark.parametrize("size", [0, 1, (1 << 19) - 1, 1 << 19, (1 << 20) + 1])
def test_content_of_any_size_is_read_to_its_end(place, size):
    files, folder = place
    data = bytes(range(251)) * (size // 251 + 1)
    files.write_atomic(f"{folder}/a", data[:size])
    assert files.read_bytes(f"{folder}/a") == data[:size]


def test_what_is_missing_is_told_apart_from_what_is_broken(place):
    files, folder = place
    for look in (files.read_bytes, files.modified_time):
        with pytest.raises(FileNotFoundError):
            look(f"{folder}/missing")
    with pytest.raises(FileNotFoundError):
        files.move(f"{folder}/missing", f"{folder}/target")
    assert not files.exists(f"{folder}/missing")
    assert files.list_names(f"{folder}/missing") == []
    assert files.remove_stale(f"{folder}/missing") == []
    files.remove(f"{folder}/missing")


def test_only_the_first_creates_exclusively(place):
    files, folder = place
    assert files.create_exclusive(f"{folder}/claims/a", b"first")
    assert not files.create_exclusive(f"{folder}/claims/a", b"second")
    assert files.read_bytes(f"{folder}/claims/a") == b"first"


def test_moving_replaces_the_target(place):
    files, folder = place
    files.write_many({f"{folder}/a": b"a", f"{folder}/b": b"b"})
    files.move(f"{folder}/a", f"{folder}/b")
    assert files.read_bytes(f"{folder}/b") == b"a"
    assert not files.exists(f"{folder}/a")


def test_a_tree_is_removed_only_below_the_marker():
    files = _objects()
    files.write_atomic(f"{FOLDER}/precious/file", b"x")
    for name in (f"{FOLDER}/precious", f"{FOLDER}/../sweep", "gs://bucket//sweep"):
        with pytest.raises(UserError, match="not deleted"):
            files.remove_tree(name)
    files.write_atomic(f"{FOLDER}/{MARKER}", b"{}")
    files.remove_tree(f"{FOLDER}/precious/")
    assert files.list_names(FOLDER) == [MARKER]
    files.remove_tree(f"{FOLDER}/precious")


def test_nothing_is_appended_so_logs_become_segments():
    files = _objects()
    with pytest.raises(NotImplementedError):
        files.append(f"{FOLDER}/log", b"x")
    path = CellLayout(FOLDER).log("main")
    for part in range(3):
        writer = open_log(files, path)
        writer.append({"part": part})
        writer.flush()
    events, problems = read_log(files, path)
    assert [event["part"] for event in events] == [0, 1, 2] and not problems


def test_a_reader_never_meets_a_mix_of_two_contents():
    store, size = ObjectGfile(), 3 << 19
    generations = itertools.count(1)
    reads = itertools.count()
    files = _objects(store)

    def replace(doing, path):
        # While the reader is in the middle, a few times; then it is left in peace.
        if doing == "read" and (number := next(reads)) < 12 and number % 3 == 1:
            store.objects[path] = (bytes([next(generations)]) * size, 0)

    store.put(f"{FOLDER}/state", bytes([0]) * size)
    store.at_point = replace
    data = files.read_bytes(f"{FOLDER}/state")
    assert len(data) == size and len(set(data)) == 1

    store.at_point = lambda doing, path: store.objects.update(
        {path: (bytes([next(generations) % 250]) * size, 0)}
    )
    with pytest.raises(StoreError, match="keep replacing"):
        files.read_bytes(f"{FOLDER}/state")


def test_a_killed_move_leaves_the_content_at_one_place_at_least():
    for killed_at in ("put", "after put", "between", "remove", "after remove"):
        store = ObjectGfile()
        files = _objects(store)
        files.write_many({f"{FOLDER}/a": b"new", f"{FOLDER}/b": b"old"})

        def kill(doing, path, at=killed_at):
            if doing == at:
                raise Killed

        store.at_point = kill
        with pytest.raises(Killed):
            files.move(f"{FOLDER}/a", f"{FOLDER}/b")
        store.at_point = lambda doing, path: None
        target = files.read_bytes(f"{FOLDER}/b")
        assert target == b"new" or files.read_bytes(f"{FOLDER}/a") == b"new"
        if files.exists(f"{FOLDER}/a"):
            files.move(f"{FOLDER}/a", f"{FOLDER}/b")
        assert files.read_bytes(f"{FOLDER}/b") == b"new"


def test_a_cell_has_one_owner_and_a_silent_one_is_taken_over():
    now = [0.0]
    store = ObjectGfile()
    timing = Timing(beat_every=1000.0, expire_after=120.0)
    owners = [Owner.here() for _ in range(2)]
    # As seen from another machine: that a process is alive here proves nothing.
    elsewhere = [
        dataclasses.replace(owner, machine=f"other-{n}")
        for n, owner in enumerate(owners)
    ]
    first, second = (
        Locks(_objects(store), owner, timing, clock=lambda: now[0])
        for owner in elsewhere
    )
    cell = f"{FOLDER}/cells/c"
    lock = first.acquire(cell)
    assert lock is not None and second.acquire(cell) is None
    now[0] = 121.0
    taken = second.acquire(cell)
    assert taken is not None
    taken.check()
    with pytest.raises(LockLost):
        lock.check()
    taken.release()
    lock.release()
    assert first.acquire(cell) is not None


def test_a_study_killed_while_closing_is_closed_by_the_next_run():
    tables = {
        "study": frames.study(),
        "trials": frames.trials(),
        "curves": frames.curves(),
        "work": frames.work(),
    }
    expected = _objects()
    close_study(expected, FOLDER, **tables)
    for kill_at in itertools.count(1):
        points = itertools.count(1)

        def kill(doing, path, points=points, at=kill_at):
            if next(points) == at:
                raise Killed

        store = ObjectGfile(kill)
        try:
            close_study(_objects(store), FOLDER, **tables)
        except Killed:
            store.at_point = lambda doing, path: None
        else:
            break
        files = _objects(store)
        closed, problems = read_closed(files, FOLDER)
        assert problems == []
        close_study(files, FOLDER, **tables)
        closed, problems = read_closed(files, FOLDER)
        assert problems == []
        assert closed.study == tables["study"]
        for name in CLOSING_TABLES:
            path = CellLayout(FOLDER).table(name)
            assert files.read_bytes(path) == expected.read_bytes(path)
    assert kill_at > 4


def test_every_refusal_of_the_store_is_one_sentence():
    def refuse(doing, path):
        raise tf.errors.PermissionDeniedError(None, None, "no access\nto that\nbucket")

    files = _objects(ObjectGfile(refuse))
    with pytest.raises(StoreError, match=r"no access; make it writable") as caught:
        files.write_atomic(f"{FOLDER}/a", b"x")
    assert caught.value.path == f"{FOLDER}/a" and "\n" not in str(caught.value)
    for attempt in (
        lambda: files.write_many({f"{FOLDER}/{n}": b"x" for n in range(3)}),
        lambda: files.create_exclusive(f"{FOLDER}/a", b"x"),
    ):
        with pytest.raises(StoreError, match="no access"):
            attempt()


def test_a_store_that_does_not_answer_is_not_an_empty_folder():
    class Silent(ObjectGfile):
        def listdir(self, path):
            # What tf.io.gfile makes of every error while it asks for the folder.
            raise tf.errors.NotFoundError(None, None, f"Could not find {path}")

        def exists(self, path):
            raise tf.errors.UnavailableError(None, None, "no answer")

    with pytest.raises(StoreError, match="Cannot list .*: no answer"):
        _objects(Silent()).list_names(FOLDER)


def test_a_missing_bucket_is_one_sentence():
    with pytest.raises(StoreError, match=r"gs://mistyped/a: .*no such bucket"):
        _objects().write_atomic("gs://mistyped/a", b"x")


@pytest.mark.parametrize(
    "attempt",
    [
        lambda files: files.read_bytes("unknown://bucket/a"),
        lambda files: files.write_atomic("unknown://bucket/a", b"x"),
        lambda files: files.exists("unknown://bucket/a"),
        lambda files: files.list_names("unknown://bucket"),
        lambda files: files.modified_time("unknown://bucket/a"),
        lambda files: files.remove("unknown://bucket/a"),
        lambda files: files.move("unknown://bucket/a", "unknown://bucket/b"),
        lambda files: files.remove_tree("unknown://bucket/a"),
    ],
)
def test_a_scheme_that_tensorflow_lacks_is_one_sentence(attempt):
    with pytest.raises(StoreError, match="scheme 'unknown' not implemented"):
        attempt(GFileFiles())


def test_a_full_disk_is_noticed_before_anything_is_put(monkeypatch):
    usage = SimpleNamespace(free=100)
    monkeypatch.setattr(gfile_files.shutil, "disk_usage", lambda path: usage)
    store = ObjectGfile()
    with pytest.raises(StoreError, match="no room for 120 bytes.*free some space"):
        _objects(store).write_many({f"{FOLDER}/{n}": b"x" * 60 for n in range(2)})
    assert not store.objects
