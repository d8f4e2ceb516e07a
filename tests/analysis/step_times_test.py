"""Tables of step times: what is read, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.law import Observations, fit_law
from dps_tf.analysis.step_times import DRAWS, checked_step_times, step_time_model
from dps_tf.core import UserError


def step_times():
    return pd.DataFrame(
        {
            "batch_size": [8, 64, 512, 512],
            "devices": [1, 1, 1, 4],
            "seconds": [0.01, 0.02, 0.1, 0.03],
            "price": [1.0, 1.0, 1.0, 4.0],
        }
    )


def test_a_table_is_read_and_checked(tmp_path):
    path = tmp_path / "times.csv"
    step_times().to_csv(path, index=False)
    read = checked_step_times(read_csv(path))
    pd.testing.assert_frame_equal(read, step_times(), check_dtype=False)
    step_times().drop(columns="seconds").to_csv(path, index=False)
    with pytest.raises(UserError, match="no column 'seconds'"):
        checked_step_times(read_csv(path))
    step_times().assign(seconds=[1, 0, 1, 1]).to_csv(path, index=False)
    with pytest.raises(UserError, match="seconds is .* in row 2"):
        checked_step_times(read_csv(path))
    with pytest.raises(UserError, match="absent.csv' cannot be read: No such file"):
        checked_step_times(read_csv(tmp_path / "absent.csv"))
    path.write_text("")
    with pytest.raises(UserError, match="not a CSV table"):
        checked_step_times(read_csv(path))


def test_draws_of_step_times_are_independent_of_those_of_a_law():
    """Both fits have slices of their scale; in one order large scales would meet."""
    sizes = np.array([8, 16, 32, 64, 128])
    spread = [1.2, 0.8, 1.3, 0.9, 1.1]
    law = fit_law(Observations.of(sizes, (4_000 / sizes + 60) * spread)).posterior
    table = pd.DataFrame({"batch_size": sizes, "devices": 1})
    table["seconds"] = (0.01 + 0.001 * sizes) * spread
    steps = law.draws(DRAWS).steps(np.array([16.0]))[:, 0]
    seconds = step_time_model(table, 1).seconds(np.array([16.0]))[:, 0]
    far = [np.abs(x / np.median(x) - 1) for x in (steps, seconds)]
    assert abs(spearmanr(*far).statistic) < 0.06
