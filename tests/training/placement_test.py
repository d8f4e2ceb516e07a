"""Where a data set is put: the rule of `auto`, and what a group agrees on."""

from __future__ import annotations

from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf.training import DeviceData, StreamedData, device_memory
from dps_tf.training import strategy as strategies
from dps_tf.training.device_memory import place
from tests.training import problems

BLOBS = problems.BLOBS
# 225 and 75 examples of eight float32 and an int32 label; validation counts twice.
TRAIN, VALIDATION = 225 * 36, 75 * 36
NEEDED = TRAIN + 2 * VALIDATION


class PlacementTest(tf.test.TestCase, parameterized.TestCase):
    def test_size_is_that_of_the_examples(self):
        self.assertEqual(device_memory.example_bytes(BLOBS), TRAIN + VALIDATION)

    @parameterized.parameters((0, StreamedData), (-1, StreamedData), (1, DeviceData))
    def test_auto_takes_a_quarter_of_the_free_memory_of_the_host(self, more, kind):
        free = 0 if more == 0 else 4 * NEEDED + min(more, 0)
        data = place(BLOBS, problems.one_device(), "auto", free)
        self.assertIs(type(data), kind)

    @parameterized.parameters(("device", DeviceData), ("stream", StreamedData))
    def test_what_is_asked_for_is_done_whatever_is_free(self, name, kind):
        for free in (0.0, 1e15):
            data = place(BLOBS, problems.one_device(), name, free)
            self.assertIs(type(data), kind)
            self.assertEqual(data.placement, name)

    @pytest.mark.multi_device
    def test_virtual_cpus_share_the_memory_of_the_host(self):
        devices = ("/device:CPU:0", "/device:CPU:1")
        strategy = strategies.build("mirrored", devices=devices)
        self.assertFalse(device_memory.fits_devices(BLOBS, strategy, 8 * NEEDED - 1))
        self.assertTrue(device_memory.fits_devices(BLOBS, strategy, 8 * NEEDED))

    @parameterized.parameters(
        (None, 4 * NEEDED, True),
        (None, 4 * NEEDED - 1, False),
        (100, 4 * NEEDED, False),
        (100, 4 * NEEDED + 100, True),
    )
    def test_accelerator_is_asked_what_it_uses(self, used, memory, fits):
        """No accelerator is here: only what is asked of TensorFlow is shown."""
        strategy = mock.Mock()
        gpus = [f"/job:localhost/replica:0/task:0/device:GPU:{k}" for k in range(2)]
        strategy.extended.worker_devices = gpus
        asked = []

        def told(device: str) -> dict[str, int]:
            asked.append(device)
            if used is None:
                raise ValueError("Memory statistics not tracked")
            return {"current": used, "peak": 2 * used}

        with (
            mock.patch.object(tf.config.experimental, "get_memory_info", told),
            mock.patch.object(device_memory, "ASSUMED_MEMORY", memory),
        ):
            self.assertEqual(device_memory.fits_devices(BLOBS, strategy, 0.0), fits)
        self.assertEqual(asked, ["GPU:0", "GPU:1"][: 2 if fits else 1])

    def test_only_a_stream_is_worth_a_note(self):
        held, streamed = (
            place(BLOBS, problems.one_device(), name) for name in ("device", "stream")
        )
        self.assertEqual(device_memory.note(BLOBS, held), "")
        self.assertEqual(
            device_memory.note(BLOBS, streamed),
            "synthetic: 0.0 MB, streamed from the host",
        )
