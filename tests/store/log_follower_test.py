from __future__ import annotations

import pytest

from dps_tf.store.files import FileSystem, LocalFiles
from dps_tf.store.log import open_log
from dps_tf.store.log_follower import LogFollower
from tests.store.object_store import ObjectFiles


class CountedObjects(ObjectFiles):
    """Counts how often each object is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: dict[str, int] = {}

    def read_bytes(self, path: str) -> bytes:
        self.reads[path] = self.reads.get(path, 0) + 1
        return super().read_bytes(path)


@pytest.fixture(params=["local", "objects"])
def place(request, tmp_path) -> tuple[FileSystem, str]:
    if request.param == "objects":
        return CountedObjects(), "gs://bucket/log"
    return LocalFiles(), str(tmp_path)


def write(place, writer: str, *numbers: int) -> None:
    files, folder = place
    log = open_log(files, f"{folder}/{writer}.log")
    for number in numbers:
        log.append({"kind": "test", "number": number})
        log.flush()


def told(follower: LogFollower) -> list[int]:
    return [event["number"] for event in follower.new_events()]


def test_each_event_of_the_others_is_given_once(place):
    follower = LogFollower(*place, "mine")
    assert told(follower) == []
    write(place, "a", 1, 2)
    write(place, "b", 3)
    assert told(follower) == [1, 2, 3]
    write(place, "b", 4)
    write(place, "a", 5)
    assert told(follower) == [5, 4]
    assert told(follower) == []


def test_what_was_written_before_is_its_own_only_at_first(place):
    write(place, "mine", 1)
    follower = LogFollower(*place, "mine")
    assert told(follower) == [1]
    write(place, "mine", 2)
    write(place, "a", 3)
    assert told(follower) == [3]


def test_an_unfinished_line_is_left_for_the_next_look(tmp_path):
    follower = LogFollower(LocalFiles(), str(tmp_path), "mine")
    write((LocalFiles(), str(tmp_path)), "a", 1, 2)
    log = tmp_path / "a.log"
    data = log.read_bytes()
    log.write_bytes(data[:-5])
    assert told(follower) == [1]
    log.write_bytes(data)
    assert told(follower) == [2]


def test_segments_are_read_once():
    place = CountedObjects(), "gs://bucket/log"
    follower = LogFollower(*place, "mine")
    for number in range(5):
        write(place, "a", number)
        assert told(follower) == [number]
    assert set(place[0].reads.values()) == {1}


def test_a_log_that_was_copied_to_or_from_a_bucket_is_followed(tmp_path):
    local = LocalFiles(), str(tmp_path)
    objects = ObjectFiles(), "gs://bucket/log"
    write(local, "a", 1)
    objects[0].write_atomic("gs://bucket/log/a.log", (tmp_path / "a.log").read_bytes())
    follower = LogFollower(*objects, "mine")
    assert told(follower) == [1] and told(follower) == []
    write(objects, "b", 2)
    segment = objects[0].read_bytes("gs://bucket/log/b.log.segments/00000001")
    (tmp_path / "b.log.segments").mkdir()
    (tmp_path / "b.log.segments" / "00000001").write_bytes(segment)
    assert told(LogFollower(*local, "mine")) == [1, 2]
