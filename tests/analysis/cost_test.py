from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.step_times import read_step_times, time_and_cost
from dps_tf.core import UserError


def results():
    batch = np.array([8, 64, 512, 4096])
    return pd.DataFrame(
        {
            "workload": "toy",
            "optimizer": "sgd",
            "sparsity_method": "none",
            "seed": 0,
            "batch_size": batch,
            "sparsity": 0.0,
            "precision": "float32",
            "steps_to_result": pd.array([8000, 1500, 600, None], dtype="Int64"),
            "bracket_low": pd.array([7900, 1400, 500, None], dtype="Int64"),
            "steps_bound": ["", "", "", "> 9000"],
        }
    )


def step_times():
    return pd.DataFrame(
        {
            "batch_size": [8, 64, 512, 512],
            "devices": [1, 1, 1, 4],
            "seconds": [0.01, 0.02, 0.1, 0.03],
            "price": [1.0, 1.0, 1.0, 4.0],
        }
    )


def test_fastest_and_cheapest_batch_sizes():
    frame = time_and_cost(results(), step_times())
    assert list(frame["time_seconds"]) == pytest.approx([80, 30, 60, 18])
    assert list(frame["cost"] * 3600) == pytest.approx([80, 30, 60, 72])
    assert list(frame["is_fastest"]) == [False, False, False, True]
    assert list(frame["is_cheapest"]) == [False, True, False, False]


def test_each_curve_has_its_own_fastest():
    sparse = results().assign(sparsity=0.9, sparsity_method="snip")
    frame = time_and_cost(pd.concat([results(), sparse]), step_times())
    assert frame.groupby("sparsity")["is_fastest"].sum().tolist() == [1, 1]


def test_a_bounded_k_star_is_never_the_fastest():
    bounded = results()
    bounded.loc[2, "steps_bound"] = ">= 100, <= 600"
    frame = time_and_cost(bounded, step_times())
    assert not frame.loc[frame["batch_size"] == 512, "is_fastest"].any()
    assert frame["is_fastest"].sum() == 1


def test_step_times_may_be_of_one_optimizer():
    times = step_times().assign(optimizer="momentum")
    with pytest.raises(UserError, match="8, 64, 512"):
        time_and_cost(results(), times)
    assert len(time_and_cost(results(), times.assign(optimizer="sgd"))) == 4


def test_a_table_is_read_and_checked(tmp_path):
    path = tmp_path / "times.csv"
    step_times().to_csv(path, index=False)
    pd.testing.assert_frame_equal(read_step_times(path), step_times())
    step_times().drop(columns="seconds").to_csv(path, index=False)
    with pytest.raises(UserError, match="no column 'seconds'"):
        read_step_times(path)
    step_times().assign(seconds=[1, 0, 1, 1]).to_csv(path, index=False)
    with pytest.raises(UserError, match="seconds is .* in row 2"):
        read_step_times(path)
    with pytest.raises(UserError, match="absent.csv' cannot be read: No such file"):
        read_step_times(tmp_path / "absent.csv")
    path.write_text("")
    with pytest.raises(UserError, match="not a CSV table"):
        read_step_times(path)
