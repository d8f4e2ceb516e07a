"""Training trials: strategies, the compiled slice, evaluation, the Keras callback."""

from __future__ import annotations

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
from dps_tf.training.callback import StepsToResult
from dps_tf.training.device_data import DeviceData, PlacedData
from dps_tf.training.device_memory import explain
from dps_tf.training.lanes import NoLanes
from dps_tf.training.program import Program, Task, most_lanes
from dps_tf.training.runner import TrainingRunner
from dps_tf.training.strategy import check_batch_size, check_shares, environment, kind
from dps_tf.training.streamed_data import StreamedData
