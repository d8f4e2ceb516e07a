"""Strategies by name, and one clear sentence for what cannot be had."""

from __future__ import annotations

from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf.core import UserError
from dps_tf.training import strategy as strategies


class StrategyTest(tf.test.TestCase, parameterized.TestCase):
    def test_names(self):
        devices = len(strategies.local_devices())
        mirrored = strategies.build("mirrored")
        self.assertIsInstance(mirrored, tf.distribute.MirroredStrategy)
        self.assertEqual(mirrored.num_replicas_in_sync, devices)
        one = strategies.build("one_device")
        self.assertIsInstance(one, tf.distribute.OneDeviceStrategy)
        self.assertTrue(strategies.kind(one).loops_inside)
        self.assertFalse(strategies.kind(mirrored).loops_inside)

    @parameterized.parameters("CPU", "GPU", "TPU")
    def test_what_holds_on_cpus_is_claimed_of_no_other_device(self, device):
        strategy = mock.Mock()
        strategy.extended.worker_devices = [
            f"/task:0/device:{device}:{i}" for i in "01"
        ]
        kind = strategies.kind(strategy)
        of_cpus = {kind.repeats, kind.on_host, kind.lanes_pay, kind.calls_pay}
        self.assertEqual(of_cpus, {device == "CPU"})
        self.assertEqual(kind.xla_pays, device == "GPU")

    def test_strategies_of_several_sizes_live_in_one_process(self):
        for replicas in (2, 4, 2):
            devices = tuple(f"CPU:{i}" for i in range(replicas))
            strategy = strategies.build("mirrored", devices=devices)
            one = strategy.run(lambda: tf.constant(1.0))
            total = strategy.reduce(tf.distribute.ReduceOp.SUM, one, axis=None)
            self.assertEqual(float(total), replicas)

    @parameterized.parameters(
        ("miror", "'miror' is unknown: did you mean 'mirrored'"),
        ("MIRRORED", "known: mirrored, one_device, tpu"),
        (None, "None is unknown"),
    )
    def test_unknown_name(self, name, message):
        with self.assertRaisesRegex(UserError, message):
            strategies.build(name)

    def test_tpu_that_is_not_there(self):
        if tf.config.list_physical_devices("TPU"):
            self.skipTest("this machine has a TPU")
        with self.assertRaisesRegex(UserError, "^no TPU was found for") as caught:
            strategies.build("tpu")
        message = str(caught.exception)
        self.assertLen(message.splitlines(), 1)
        self.assertLess(len(message), 250)

    @pytest.mark.tpu
    def test_tpu(self):
        if not tf.config.list_physical_devices("TPU"):
            self.skipTest("this machine has no TPU")
        strategy = strategies.build("tpu")
        self.assertTrue(strategies.kind(strategy).loops_inside)


class ThreadsTest(tf.test.TestCase):
    def test_present_choice_may_be_repeated(self):
        tf.constant(1.0)
        config = tf.config.threading
        present = (
            config.get_intra_op_parallelism_threads(),
            config.get_inter_op_parallelism_threads(),
        )
        strategies.configure_threads(*present)

    def test_gpus_share_memory_and_keep_float32(self):
        tf.config.experimental.enable_tensor_float_32_execution(True)
        with (
            mock.patch.object(tf.config, "list_physical_devices", lambda _: ["GPU:0"]),
            mock.patch.object(tf.config.experimental, "set_memory_growth") as grows,
        ):
            self.test_present_choice_may_be_repeated()
        grows.assert_called_once_with("GPU:0", True)
        self.assertFalse(tf.config.experimental.tensor_float_32_execution_enabled())

    def test_another_choice_leaves_tensorflow_as_it_was_started(self):
        tf.constant(1.0)
        present = strategies.intra_op_threads()
        self.assertEqual(strategies.configure_threads(present + 2, 5), present)
        self.test_present_choice_may_be_repeated()
