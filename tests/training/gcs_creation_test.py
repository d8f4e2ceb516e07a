"""Are objects of gs:// created exclusively? The real client, a local stand-in."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from dps_tf.core import UserError
from dps_tf.store import Claims, Owner, StoreError
from dps_tf.training import GFileFiles, gfile_files
from dps_tf.training.gfile_files import put_if_absent
from tests.training.gcs_emulator import Emulator, emulator
from tests.training.object_gfile import ObjectGfile

PATH = "gs://bucket/sweep/cells/c/claims/cell.00000001.claim"
NAME = PATH.removeprefix("gs://bucket/")


@pytest.fixture
def store(monkeypatch) -> Iterator[Emulator]:
    with emulator() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        gfile_files.gcs_client.cache_clear()
        yield server
    gfile_files.gcs_client.cache_clear()


def test_the_first_creates_and_the_second_changes_nothing(store):
    assert put_if_absent(PATH, b"first")
    assert not put_if_absent(PATH, b"second")
    assert store.objects == {NAME: b"first"}


def test_of_many_at_once_exactly_one_creates(store):
    gate = threading.Barrier(12)
    made: dict[int, bool] = {}

    def create(caller: int) -> None:
        gate.wait(30)
        made[caller] = put_if_absent(PATH, b"caller %d" % caller)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    [winner] = [caller for caller, has_made in made.items() if has_made]
    assert len(made) == 12
    assert store.objects[NAME] == b"caller %d" % winner


def test_a_creation_whose_answer_was_lost_is_known_as_ones_own(store):
    answers = iter(["lost", 0])
    store.refuse = lambda method, name: next(answers)
    # The client asks again, and is told that there is an object: its own.
    assert put_if_absent(PATH, b"mine")
    assert store.objects == {NAME: b"mine"}


def test_a_busy_store_is_asked_again(store):
    answers = iter([503, 429, 0])
    store.refuse = lambda method, name: next(answers)
    assert put_if_absent(PATH, b"mine")


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        (PATH, 403, "Cannot write gs://bucket/.*; make it writable for this user"),
        ("gs://mistyped/a", 0, "Cannot write gs://mistyped/a: there is no such bucket"),
    ],
)
def test_refusals_are_one_sentence(store, path, status, sentence):
    store.refuse = lambda method, name: status
    with pytest.raises(StoreError, match=sentence) as caught:
        put_if_absent(path, b"x")
    assert "\n" not in str(caught.value)


def test_what_else_is_needed_is_said(monkeypatch):
    with pytest.raises(UserError, match="s3://bucket/a: .* only gs://"):
        put_if_absent("s3://bucket/a", b"x")
    gfile_files.gcs_client.cache_clear()
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    monkeypatch.setitem(sys.modules, "google.cloud", None)
    with pytest.raises(UserError, match=r"pip install 'dps_tf\[gcs\]'"):
        put_if_absent(PATH, b"x")


def test_of_two_machines_one_claims_a_cell(store, monkeypatch):
    """All but the creation goes through tf.io.gfile, whose objects are the same."""
    gfile = ObjectGfile(objects=_Shared(store))
    folder = "gs://bucket/sweep/cells/c/claims"
    claims = [
        Claims(GFileFiles(gfile), folder, Owner.here()),
        Claims(GFileFiles(gfile), folder, Owner.here()),
    ]
    gate, made = threading.Barrier(2), []

    def claim(one: Claims) -> None:
        one.beat()
        gate.wait(30)
        made.append(one.claim())

    threads = [threading.Thread(target=claim, args=(one,)) for one in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 2
    [held] = [one for one in made if one is not None]
    held.check()


class _Shared(dict):
    """The emulator's objects as `ObjectGfile` keeps them."""

    def __init__(self, store: Emulator) -> None:
        super().__init__()
        self._store = store

    def __setitem__(self, path, item):
        self._store.objects[path.removeprefix("gs://bucket/")] = item[0]

    def __getitem__(self, path):
        return self._store.objects[path.removeprefix("gs://bucket/")], 0

    def __delitem__(self, path):
        del self._store.objects[path.removeprefix("gs://bucket/")]

    def __contains__(self, path):
        return path.removeprefix("gs://bucket/") in self._store.objects

    def __iter__(self):
        return iter([f"gs://bucket/{name}" for name in list(self._store.objects)])
