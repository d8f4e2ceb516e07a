"""What a sweep and its measurements are where data do not fit the device."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pandas as pd
import pytest

from dps_tf.probing import Measurer, Wanted
from dps_tf.store import LocalFiles, StudyReader
from dps_tf.training import device_memory
from tests.made_up import small_sweeps

FILES = LocalFiles()
CELL = "blobs-nesterov-snip-seed0-b8-s0.5"
BINDINGS = ("sweep.sparsities = (0.5,)", "sweep.sparsity_methods = ('snip',)")


def run(directory: Path) -> list[pd.DataFrame]:
    """Trains a pruned cell; returns its curves and measurements."""
    layout = small_sweeps.trained(directory, BINDINGS)
    curves = StudyReader(FILES, layout.cell(CELL)).closed(("curves",))["curves"]
    return [curves, Measurer(FILES, layout, Wanted(40, 3)).measure(CELL)]


@pytest.mark.slow
def test_set_that_does_not_fit_is_streamed_without_being_asked_to(tmp_path, capsys):
    held = run(tmp_path / "held")
    assert "streamed" not in capsys.readouterr().out
    with mock.patch.object(device_memory, "DATA_SHARE", 0.0):
        streamed = run(tmp_path / "streamed")
    assert capsys.readouterr().out.count("synthetic: 0.0 MB, streamed") == 1
    for one, other in zip(held, streamed, strict=True):
        assert len(one) > 0
        pd.testing.assert_frame_equal(one, other)
