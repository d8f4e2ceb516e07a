"""An --import: simulated turns take a while, so that there is time to kill.

What is done is written each second, so that a test sees it.
"""

from __future__ import annotations

import os
import time
from typing import Any

from dps_tf.store import saving
from dps_tf.tuning.simulation import SimulatedRunner

saving.SNAPSHOT_SECONDS = 1.0
saving.SNAPSHOT_SHARE = 1.0
if "DPS_TF_PATIENCE_SECONDS" in os.environ:
    from dps_tf.tuning import ray_cluster

    ray_cluster.PATIENCE_SECONDS = float(os.environ["DPS_TF_PATIENCE_SECONDS"])
_run = SimulatedRunner.run


def _slowly(*arguments: Any) -> Any:
    time.sleep(float(os.environ.get("DPS_TF_TURN_SECONDS", "0.05")))
    killer = int(os.environ.get("DPS_TF_KILLER", "-1"))
    if any(job.trial == killer for job in arguments[2]):
        os._exit(1)
    return _run(*arguments)


SimulatedRunner.run = _slowly  # type: ignore[method-assign]
