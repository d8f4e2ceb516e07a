from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.store import (
    DamagedError,
    LocalFiles,
    State,
    StateStore,
    decode_state,
    encode_state,
)
from tests.store.faulty_files import at_every_write_point
from tests.store.object_store import MemoryFiles


def _arrays(step: int) -> list[np.ndarray]:
    return [
        np.full((2, 3), step, np.float32),
        np.array(step, np.int64),
        np.zeros((0, 4), np.float64),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)) + step,
        np.array([True, False]),
    ]


def _assert_equal(arrays, expected):
    assert len(arrays) == len(expected)
    for array, other in zip(arrays, expected, strict=True):
        assert array.dtype == other.dtype and array.shape == other.shape
        np.testing.assert_array_equal(array, other)


def _steps(store: StateStore) -> dict[int, list[int]]:
    return store._steps()


@pytest.fixture(params=["local", "objects"])
def store(request, tmp_path) -> StateStore:
    if request.param == "objects":
        return StateStore(MemoryFiles(), "gs://bucket/states")
    return StateStore(LocalFiles(), f"{tmp_path}/states")


def test_a_state_comes_back_as_it_was(store):
    assert store.load(7) == (None, [])
    store.save_many({7: State(300, _arrays(300), {"slot": 2, "text": "é"})})
    state, problems = store.load(7)
    assert problems == []
    assert (state.step, state.meta) == (300, {"slot": 2, "text": "é"})
    _assert_equal(state.arrays, _arrays(300))
    store.save_many({8: State(0, [], {})})
    assert store.load(8)[0] == State(0, [], {})
    assert store.trials() == [7, 8]


def test_floats_keep_their_bits_nan_included(store):
    special = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32)
    store.save_many({0: State(1, [special.view(np.float32)], {})})
    state, _ = store.load(0)
    np.testing.assert_array_equal(state.arrays[0].view(np.uint32), special)


def test_the_newest_two_states_are_kept(store):
    for step in (100, 200, 300, 250):
        store.save_many({1: State(step, _arrays(step), {})})
    assert _steps(store) == {1: [250, 300]}
    store.save_many({1: State(10, _arrays(10), {})})
    assert _steps(store) == {1: [250, 300]}
    assert store.load(1)[0].step == 300


def test_discarded_states_are_gone(store):
    store.save_many({n: State(5, _arrays(n), {}) for n in (0, 2)})
    store.save_many({2: State(6, _arrays(6), {})})
    states, problems = store.load_many([2, 1, 0])
    assert sorted(states) == [0, 2] and problems == []
    states, _ = store.load_many()
    assert sorted(states) == [0, 2]


def test_a_damaged_state_falls_back_to_the_one_before(tmp_path):
    store = StateStore(LocalFiles(), str(tmp_path))
    store.save_many({3: State(100, _arrays(100), {})})
    store.save_many({3: State(200, _arrays(200), {})})
    newest = tmp_path / "trial-000003.step-0000000200.npz"
    newest.write_bytes(newest.read_bytes()[:-1])
    state, problems = store.load(3)
    assert state.step == 100
    _assert_equal(state.arrays, _arrays(100))
    assert len(problems) == 1 and "trial 3 at step 200" in problems[0]
    assert (tmp_path / f"{newest.name}.damaged-1").exists()
    assert store.load(3)[1] == []
    oldest = tmp_path / "trial-000003.step-0000000100.npz"
    oldest.write_bytes(b"")
    state, problems = store.load(3)
    assert state is None and len(problems) == 1
    assert store.trials() == []


def test_no_flipped_bit_of_a_state_passes():
    intact = encode_state(4, State(20, _arrays(20), {"a": 1}))

    @given(st.integers(0, len(intact) * 8 - 1))
    def flip(position):
        damaged = bytearray(intact)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(DamagedError):
            decode_state("s", 4, 20, bytes(damaged))

    flip()
    for length in range(0, len(intact), 7):
        with pytest.raises(DamagedError):
            decode_state("s", 4, 20, intact[:length])
    with pytest.raises(DamagedError, match="holds trial 4 at step 20"):
        decode_state("s", 4, 21, intact)


def test_numpy_reads_a_state_as_it_is():
    data = encode_state(4, State(20, _arrays(20), {}))
    with np.load(io.BytesIO(data), allow_pickle=False) as entries:
        np.testing.assert_array_equal(entries["array_000000"], np.full((2, 3), 20.0))
    assert data == encode_state(4, State(20, _arrays(20), {}))


def test_objects_are_refused(store):
    for array in (np.array([{}]), np.zeros(2, "V2")):
        with pytest.raises(ValueError, match="cannot hold"):
            store.save_many({1: State(1, [array], {})})


@pytest.mark.parametrize("mode", ["kill", "full", "torn"])
def test_each_trial_has_its_old_or_new_state_after_a_failure(tmp_path, mode):
    trials = range(3)

    def act(files, folder):
        old = StateStore(LocalFiles(), folder)
        for step in (100, 200):
            old.save_many({n: State(step, _arrays(step + n), {}) for n in trials})
        store = StateStore(files, folder)
        store.save_many({n: State(300, _arrays(300 + n), {}) for n in trials})

    seen = set()
    for _, folder in at_every_write_point(tmp_path, mode, act):
        store = StateStore(LocalFiles(), folder)
        assert all(p.name.startswith("trial-") for p in Path(folder).iterdir())
        for n in trials:
            state, problems = store.load(n)
            assert state.step in (200, 300)
            _assert_equal(state.arrays, _arrays(state.step + n))
            assert len(problems) <= (mode == "torn")
            seen.add(state.step)
        store.save_many({n: State(300, _arrays(300 + n), {}) for n in trials})
        assert _steps(store) == {n: [200, 300] for n in trials}
    assert seen == {200, 300}
