"""Do object stores keep what the store promises? obstore itself, on stand-ins."""

from __future__ import annotations

import functools
import sys
import threading

import pytest
from obstore.store import MemoryStore

from dps_tf.core import UserError
from dps_tf.store import (
    MARKER,
    CellLayout,
    LocalFiles,
    StoreError,
    files_for,
    open_log,
    read_log,
)
from dps_tf.store.object_files import ObjectFiles
from tests.store.http_store import HttpStore, http_store

FOLDER = "gs://bucket/sweep"
SCHEMES = ("gs", "s3", "az")


@pytest.fixture
def files() -> ObjectFiles:
    """Objects in memory, under any bucket."""
    return ObjectFiles(functools.cache(lambda url: MemoryStore()))


@pytest.fixture
def server(monkeypatch) -> HttpStore:
    """A server that answers all three kinds of stores."""
    with http_store() as running:
        settings = {
            "AWS_ENDPOINT_URL": running.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_SKIP_SIGNATURE": "true",
            "AZURE_ENDPOINT": running.url,
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_SKIP_SIGNATURE": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "GOOGLE_BASE_URL": running.url,
            "GOOGLE_ALLOW_HTTP": "true",
            "GOOGLE_BEARER_TOKEN": "token",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield running


def test_the_directory_chooses_its_files():
    assert isinstance(files_for("sweeps/mnist"), LocalFiles)
    for url in ("gs://bucket/sweep", "s3://bucket/sweep", "az://container/sweep"):
        assert isinstance(files_for(url), ObjectFiles)


def test_the_missing_library_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "dps_tf.store.object_files", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UserError, match=r"pip install 'dps_tf\[cloud\]'"):
        files_for("gs://bucket/sweep")


@pytest.mark.parametrize(
    "url", ["hdfs://bucket/a", "http://bucket/a", "://a", "gs:///a"]
)
def test_a_url_that_no_store_has_is_one_sentence(url):
    for attempt in (
        ObjectFiles().read_bytes,
        ObjectFiles().list_names,
        ObjectFiles().exists,
        lambda path: ObjectFiles().write_atomic(path, b"x"),
        lambda path: ObjectFiles().create_exclusive(path, b"x"),
    ):
        with pytest.raises((UserError, StoreError)) as caught:
            attempt(url)
        assert url in str(caught.value) and "\n" not in str(caught.value)


def test_nothing_is_appended_so_logs_become_segments(files):
    with pytest.raises(NotImplementedError):
        files.append(f"{FOLDER}/log", b"x")
    path = CellLayout(FOLDER).log("main")
    for part in range(3):
        writer = open_log(files, path)
        writer.append({"part": part})
        writer.flush()
    events, problems = read_log(files, path)
    assert [event["part"] for event in events] == [0, 1, 2] and not problems


@pytest.mark.parametrize("name", ["precious/../x", "/x", "precious"])
def test_a_tree_outside_of_a_marked_folder_stays(files, name):
    files.write_atomic(f"{FOLDER}/precious/file", b"x")
    with pytest.raises((UserError, StoreError)):
        files.remove_tree(f"{FOLDER}/{name}")
    assert files.read_bytes(f"{FOLDER}/precious/file") == b"x"


def test_a_tree_with_many_objects_is_removed(files):
    names = {f"{FOLDER}/states/{n}/state": b"x" for n in range(30)}
    files.write_many({**names, f"{FOLDER}/{MARKER}": b"{}"})
    files.remove_tree(f"{FOLDER}/states/")
    assert files.list_names(FOLDER) == [MARKER]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_of_many_callers_at_once_exactly_one_creates(server, scheme):
    path = f"{scheme}://bucket/claims/cell.00000001.claim"
    gate = threading.Barrier(8)
    made: dict[int, bool] = {}

    def create(caller: int) -> None:
        files = ObjectFiles()
        gate.wait(30)
        made[caller] = files.create_exclusive(path, b"caller %d" % caller)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    [winner] = [caller for caller, has_made in made.items() if has_made]
    assert len(made) == 8
    assert ObjectFiles().read_bytes(path) == b"caller %d" % winner


def test_a_creation_whose_answer_was_lost_is_known_as_ones_own(server):
    files = ObjectFiles()
    assert files.create_exclusive("s3://bucket/a", b"before")
    answers = iter([503])
    server.after_put = lambda name: next(answers, 200)
    # obstore asks again, and is told that there is an object: the caller's own.
    assert files.create_exclusive("s3://bucket/b", b"mine")
    assert not files.create_exclusive("s3://bucket/b", b"yours")


def test_a_store_that_creates_what_exists_is_refused(server):
    server.heeds = False
    with pytest.raises(UserError, match="two processes might train one cell"):
        ObjectFiles().create_exclusive("s3://bucket/claim", b"x")


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (403, "Cannot write s3://bucket/a: .*; make it writable for this user"),
        (404, "Cannot write s3://bucket/a: there is no such bucket"),
        (400, "Cannot write s3://bucket/a: .*400 Bad Request"),
    ],
)
def test_refusals_are_one_sentence(server, status, sentence):
    server.before_put = lambda name: status
    for attempt in (
        lambda: ObjectFiles().write_atomic("s3://bucket/a", b"x"),
        lambda: ObjectFiles().create_exclusive("s3://bucket/a", b"x"),
    ):
        with pytest.raises(StoreError, match=sentence) as caught:
            attempt()
        assert "\n" not in str(caught.value)
