from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from dps_tf.store import LocalFiles, StateStore, SweepLayout, read_json, read_log

ROOT = Path(__file__).parents[2]

WORK = """
    import sys
    import numpy as np
    from dps_tf.store.local_files import LocalFiles
    from dps_tf.store.layout import SweepLayout
    from dps_tf.store.locks import Lock
    from dps_tf.store.log import open_log, read_log
    from dps_tf.store.records import write_json
    from dps_tf.store.states import State, StateStore
    files, cell = LocalFiles(), SweepLayout(sys.argv[1]).cell("c")
    lock = Lock(files, cell.root)
    assert lock.acquire(), "the lock of a killed process blocks"
    log, states = open_log(files, cell.log("w")), StateStore(files, cell.states)
    files.remove_stale(cell.root)
    events, problems = read_log(files, cell.log("w"))
    assert not problems, problems
    step = len(events)
    print("working", flush=True)
    while True:
        for _ in range(5):
            log.append({"step": step, "loss": 1 / (step + 1)})
            step += 1
        log.flush()
        array = np.full(20_000, step, np.float32)
        states.save_many({n: State(step, [array + n], {}) for n in range(6)})
        write_json(files, cell.study, {"step": step})
"""


@pytest.mark.fault
def test_kill_9_at_random_moments_loses_nothing_that_was_flushed(tmp_path):
    moments, files = random.Random(0), LocalFiles()
    cell = SweepLayout(f"{tmp_path}/été 1").cell("c")
    command = [sys.executable, "-c", textwrap.dedent(WORK), f"{tmp_path}/été 1"]
    reached, seen = 0, {"study": 0}
    for _ in range(20):
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
            assert child.stdout.readline() == b"working\n"
            time.sleep(moments.uniform(0, 0.1))
            child.send_signal(signal.SIGKILL)
        events, problems = read_log(files, cell.log("w"))
        assert len(problems) <= 1
        steps = [event["step"] for event in events]
        assert steps == list(range(len(steps)))
        assert [event["loss"] for event in events] == [1 / (n + 1) for n in steps]
        assert len(steps) >= reached
        reached = len(steps)
        states, problems = StateStore(files, cell.states).load_many()
        assert problems == []
        assert set(states) >= set(seen) - {"study"}
        for trial, state in states.items():
            assert seen.get(trial, 0) <= state.step <= reached, "a state went back"
            seen[trial] = state.step
            np.testing.assert_array_equal(state.arrays[0], state.step + trial)
        if files.exists(cell.study):
            step = read_json(files, cell.study)["step"]
            assert seen["study"] <= step <= reached
            seen["study"] = step
    assert reached > 100
    files.remove_stale(cell.states)
    assert not list(Path(cell.states).glob(".writing-*"))
