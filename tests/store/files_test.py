from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from dps_tf.core import UserError
from dps_tf.store import (
    MARKER,
    FileSystem,
    LocalFiles,
    StoreError,
    files_for,
    is_temporary,
)
from dps_tf.store.local_files import temporary_path
from dps_tf.store.object_files import ObjectFiles
from tests.store.faulty_files import Killed, at_every_write_point
from tests.store.object_store import MemoryFiles


@pytest.fixture(
    params=["local", "memory", "objects", "objects on a disk", "unicode and spaces"]
)
def place(request, tmp_path) -> tuple[FileSystem, str]:
    if request.param == "memory":
        return MemoryFiles(), "gs://bucket/sweep"
    if request.param == "objects":
        store = MemoryStore()
        return ObjectFiles(lambda url: store), "gs://bucket/sweep"
    if request.param == "objects on a disk":
        return files_for("file:///"), f"file://{tmp_path}/été 1"
    folder = tmp_path / ("été 1" if "unicode" in request.param else "plain")
    folder.mkdir()
    return LocalFiles(), str(folder)


def test_what_was_written_is_read_and_replaced(place):
    files, folder = place
    files.write_atomic(f"{folder}/deep/er/a", b"one")
    files.write_atomic(f"{folder}/deep/er/a", b"two")
    assert files.read_bytes(f"{folder}/deep/er/a") == b"two"
    files.write_many({f"{folder}/{n}": bytes([n % 250]) for n in range(130)})
    assert files.read_bytes(f"{folder}/129") == bytes([129])
    assert "129" in files.list_names(folder)
    assert files.list_names(folder) == sorted(files.list_names(folder))
    assert files.modified_time(f"{folder}/129") > 0


def test_what_is_missing_is_told_apart_from_what_is_broken(place):
    files, folder = place
    with pytest.raises(FileNotFoundError):
        files.read_bytes(f"{folder}/missing")
    assert not files.exists(f"{folder}/missing")
    assert files.list_names(f"{folder}/missing") == []
    assert files.remove_stale(f"{folder}/missing") == []
    files.remove(f"{folder}/missing")


def test_only_the_first_creates_exclusively(place):
    files, folder = place
    assert files.create_exclusive(f"{folder}/claims/a", b"first")
    assert not files.create_exclusive(f"{folder}/claims/a", b"second")
    assert files.read_bytes(f"{folder}/claims/a") == b"first"
    assert files.list_names(f"{folder}/claims") == ["a"]


def test_moving_replaces_the_target(place):
    files, folder = place
    files.write_atomic(f"{folder}/a", b"a")
    files.write_atomic(f"{folder}/b", b"b")
    files.move(f"{folder}/a", f"{folder}/b")
    assert files.read_bytes(f"{folder}/b") == b"a"
    assert not files.exists(f"{folder}/a")


def test_a_tree_is_removed_only_below_the_marker(place):
    files, folder = place
    files.write_atomic(f"{folder}/precious/file", b"x")
    with pytest.raises(UserError, match="not deleted"):
        files.remove_tree(f"{folder}/precious")
    assert files.exists(f"{folder}/precious/file")
    files.write_atomic(f"{folder}/{MARKER}", b"{}")
    files.remove_tree(f"{folder}/precious")
    assert not files.exists(f"{folder}/precious")
    files.remove_tree(f"{folder}/precious")


def test_a_marker_does_not_open_what_lies_outside(tmp_path):
    (tmp_path / "sweep" / "cells").mkdir(parents=True)
    (tmp_path / "sweep" / MARKER).write_text("{}")
    (tmp_path / "home").mkdir()
    files = LocalFiles()
    with pytest.raises(UserError):
        files.remove_tree(f"{tmp_path}/sweep/cells/../../home")
    (tmp_path / "sweep" / "link").symlink_to(tmp_path / "home")
    with pytest.raises(UserError, match="link"):
        files.remove_tree(f"{tmp_path}/sweep/link")
    with pytest.raises(UserError):
        files.remove_tree(f"{tmp_path}/sweep/link/..")
    assert (tmp_path / "home").is_dir()


@pytest.mark.parametrize("mode", ["kill", "full"])
def test_atomic_writes_leave_the_old_or_the_new(tmp_path, mode):
    def act(files, folder):
        LocalFiles().write_atomic(f"{folder}/a", b"old content")
        files.write_atomic(f"{folder}/a", b"new content!")

    seen = set()
    for _, folder in at_every_write_point(tmp_path, mode, act):
        seen.add(LocalFiles().read_bytes(f"{folder}/a"))
        assert LocalFiles().list_names(folder) == ["a"]
        LocalFiles().remove_stale(folder)
        assert [p.name for p in Path(folder).iterdir()] == ["a"]
    assert seen == {b"old content", b"new content!"}


# The real system calls, each failing or killing in turn.
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, None])
def test_every_system_call_of_a_write_may_fail(tmp_path, monkeypatch, number):
    calls = {"fail_at": 0, "count": 0}

    def faulty(real):
        def call(*arguments, **keywords):
            calls["count"] += 1
            if calls["count"] == calls["fail_at"]:
                raise Killed if number is None else OSError(number, "injected")
            return real(*arguments, **keywords)

        return call

    for name in ("fsync", "write", "open"):
        monkeypatch.setattr(os, name, faulty(getattr(os, name)))
    monkeypatch.setattr(Path, "replace", faulty(Path.replace))
    path = tmp_path / "a"
    failures = 0
    for point in range(1, 30):
        calls["fail_at"] = 0
        path.write_bytes(b"old")
        calls.update(fail_at=point, count=0)
        try:
            LocalFiles().write_atomic(str(path), b"new")
        except (StoreError, Killed) as error:
            failures += 1
            calls["fail_at"] = 0
            assert path.read_bytes() in (b"old", b"new")
            if number is not None:
                assert error.errno == number
                assert str(tmp_path) in str(error)
                assert list(tmp_path.iterdir()) == [path], "litter"
        if calls["count"] < point:
            break
    assert failures >= 4


def test_a_failed_append_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_bytes(b"old")
    real, calls = os.write, []

    def short_then_full(descriptor, data):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:2])

    monkeypatch.setattr(os, "write", short_then_full)
    with pytest.raises(StoreError, match=r"No space left.*free some space.*") as caught:
        LocalFiles().append(str(path), b"added")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    script = textwrap.dedent(
        """
        import resource, sys
        from dps_tf.store.local_files import LocalFiles
        from dps_tf.store.errors import StoreError
        from dps_tf.store.log import LogWriter
        from dps_tf.store.records import write_json
        from dps_tf.store.states import State, StateStore
        import numpy as np

        folder, files = sys.argv[1], LocalFiles()
        log = LogWriter(files, f"{folder}/log/w.log")
        log.append({"n": 0})
        log.flush()
        write_json(files, f"{folder}/study.json", {"old": True})
        states = StateStore(files, f"{folder}/states")
        states.save_many({1: State(10, [np.zeros(100)], {})})
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
        attempts = [
            lambda: write_json(files, f"{folder}/study.json", {"new": "x" * 4096}),
            lambda: states.save_many({1: State(20, [np.zeros(1000)], {})}),
            lambda: (log.append({"text": "x" * 4096}), log.flush()),
        ]
        for attempt in attempts:
            try:
                attempt()
            except StoreError as error:
                print(error)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
        log.flush()
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all("File too large" in line and "ulimit" in line for line in lines)

    from dps_tf.store import StateStore, read_json, read_log

    files = LocalFiles()
    assert read_json(files, f"{tmp_path}/study.json") == {"old": True}
    state, problems = StateStore(files, f"{tmp_path}/states").load(1)
    assert state is not None and state.step == 10 and not problems
    events, problems = read_log(files, f"{tmp_path}/log/w.log")
    assert [len(event) for event in events] == [1, 1] and not problems
    litter = [p.name for p in tmp_path.rglob("*") if is_temporary(p.name)]
    assert litter == []


def test_a_read_only_folder_is_one_sentence(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="make it writable"):
            LocalFiles().write_atomic(f"{tmp_path}/a", b"x")
    finally:
        tmp_path.chmod(0o700)


def test_a_file_in_place_of_a_folder_is_one_sentence(tmp_path):
    (tmp_path / "a").write_text("a file")
    for attempt in (
        lambda: LocalFiles().write_atomic(f"{tmp_path}/a/b", b"x"),
        lambda: LocalFiles().append(f"{tmp_path}/a/b/c", b"x"),
        lambda: LocalFiles().create_exclusive(f"{tmp_path}/a/b", b"x"),
    ):
        with pytest.raises(StoreError, match="move it away"):
            attempt()


def test_exclusive_creation_works_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    files = LocalFiles()
    assert files.create_exclusive(f"{tmp_path}/a", b"1")
    assert not files.create_exclusive(f"{tmp_path}/a", b"2")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_temporary_files_of_the_living_stay(tmp_path):
    mine = temporary_path(f"{tmp_path}/a")
    mine.write_bytes(b"being written")
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from dps_tf.store.local_files import temporary_path;"
            "temporary_path(sys.argv[1]).write_bytes(b'half')",
            f"{tmp_path}/b",
        ],
        check=True,
    )
    assert child.returncode == 0
    old = tmp_path / ".writing-ffffffff-1-00000000-0.temporary"
    old.write_bytes(b"from another machine, an hour and more ago")
    os.utime(old, (0, 0))
    fresh = tmp_path / ".writing-ffffffff-2-00000000-0.temporary"
    fresh.write_bytes(b"from another machine, just now")
    (tmp_path / ".writing-something-else.temporary").write_bytes(b"not ours")
    assert len(LocalFiles().remove_stale(str(tmp_path))) == 2
    assert mine.exists() and fresh.exists() and not old.exists()
    assert LocalFiles().list_names(str(tmp_path)) == [
        ".writing-something-else.temporary"
    ]
