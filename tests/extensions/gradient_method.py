"""A sparsity method that reads data: the gradient of the loss on 200 examples."""

from __future__ import annotations

import numpy as np

from dps_tf import register_sparsity_method
from dps_tf.sparsity import ExampleWindows, OneShot


def steepest(request, progress):
    """Returns |d loss / d w|, large where the first step would move a weight most."""
    return [np.abs(part) for part in request.loss_gradient(progress)]


register_sparsity_method("steepest", OneShot(steepest, reader=ExampleWindows(200)))
