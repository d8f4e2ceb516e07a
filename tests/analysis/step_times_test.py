"""Tables of step times: what is read, and what is refused."""

from __future__ import annotations

import pandas as pd
import pytest

from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.step_times import checked_step_times
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
    pd.testing.assert_frame_equal(checked_step_times(read_csv(path)), step_times())
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
