"""TensorFlow's threads, which are fixed at its first use."""

from __future__ import annotations

import tensorflow as tf

from dps_tf.core.errors import UserError


def configure(intra_op: int = 1, inter_op: int = 0) -> None:
    """Fixes TensorFlow's threads for the life of the process.

    Args:
        intra_op: threads inside one operation. They change the bits of a trial, so
            they belong to the specification of a study; 1 keeps results independent
            of how many trials run side by side.
        inter_op: threads over operations; 0 leaves the choice to TensorFlow. They
            change no bits.

    Raises:
        UserError: TensorFlow has run already in this process with other threads.
    """
    # Each slot has functions of its own, made at the same lines of code: TensorFlow
    # takes that for one function that is traced again and again, and warns.
    tf.get_logger().setLevel("ERROR")
    config = tf.config.threading
    wanted = (intra_op, inter_op)
    present = (
        config.get_intra_op_parallelism_threads(),
        config.get_inter_op_parallelism_threads(),
    )
    if present == wanted:
        return
    try:
        config.set_intra_op_parallelism_threads(intra_op)
        config.set_inter_op_parallelism_threads(inter_op)
    except RuntimeError as error:
        raise UserError(
            f"TensorFlow already runs in this process with (intra, inter) threads "
            f"{present} instead of {wanted}: call dps_tf.training.threads.configure "
            "before anything uses TensorFlow."
        ) from error
