from __future__ import annotations

import math

import pytest

from dps_tf.store import saving
from tests.store.unsynced import nobody_pulls_the_plug  # noqa: F401 - every test here


@pytest.fixture(scope="session", autouse=True)
def saving_takes_what_it_takes():
    """By a clock that jumps at each look, saving seems to take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "SNAPSHOT_SHARE", math.inf)
        yield
