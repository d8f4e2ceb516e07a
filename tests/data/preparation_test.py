"""A set is prepared at once or not at all, from the published files only."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import data
from dps_tf.core import UserError
from dps_tf.data import download, preparation, raw, tfds
from dps_tf.data.dataset import split_indices
from dps_tf.data.prepared import ARRAYS, prepared_folder
from dps_tf.data.raw import PUBLISHED, RawFile
from tests import interpreter
from tests.data import raw_files, tiny_published

ROOT = Path(__file__).parents[2]
NAMES = ("mnist", "fashion_mnist", "cifar10", "tiny_shakespeare")
IMAGES = NAMES[:3]

KILLED_IN_THE_MIDDLE = """
import os, pathlib, signal, sys
from dps_tf.data import preparation, tfds
from tests.data import tiny_published
raw_dir, data_dir = map(pathlib.Path, sys.argv[1:])
def prepare_and_die(*arguments):
    build(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
build, tfds.prepare = tfds.prepare, prepare_and_die
with tiny_published.in_place_of_published("cifar10"):
    preparation.prepare("cifar10", data_dir, raw_dir)
"""


def prepare(name: str, data_dir: Path, raw_dir: Path | None, told=None) -> Path:
    told = [] if told is None else told
    return preparation.prepare(name, data_dir, raw_dir, told.append)


class PrepareTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.root = raw_files.new_folder(self)
        self.raw, self.data = self.root / "raw", self.root / "data"

    def offer(self, name: str, archive: Path | None = None) -> None:
        """Writes the tiny set (unless as archive) and lets it pass as published."""
        if archive is None:
            tiny_published.write(name, self.raw / name)
        context = tiny_published.in_place_of_published(name, archive)
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    @parameterized.parameters(*IMAGES)
    def test_images_come_back_in_file_order(self, name):
        self.offer(name)
        folder = prepare(name, self.data, self.raw)
        self.assertEqual(folder, prepared_folder(name, self.data))
        images, labels = preparation.read_checked_images(name, folder)
        self.assertAllEqual(labels, raw_labels(name, self.raw))
        self.assertEqual(raw.content_sum(images, labels), PUBLISHED[name].content)
        dataset = data.load(name, self.data, validation_examples=10)
        self.assertEqual((len(dataset.train), len(dataset.validation)), (30, 10))
        both = np.concatenate([dataset.train.inputs, dataset.validation.inputs])
        self.assertAllClose(both.mean((0, 1, 2)), np.zeros(images.shape[-1]), atol=1e-6)
        with_test = data.load(name, self.data, validation_examples=10, test="given")
        _, test_labels = preparation.read_checked_images(name, folder, "test")
        self.assertAllEqual(with_test.test.labels, test_labels)
        self.assertLen(with_test.test, tiny_published.TEST)
        self.assertAllEqual(with_test.train.inputs, dataset.train.inputs)
        self.assertNotEqual(with_test.content_hash, dataset.content_hash)

    def test_pixels_are_scaled_as_asked_for(self):
        self.offer("cifar10")
        folder = prepare("cifar10", self.data, self.raw)
        images, _ = preparation.read_checked_images("cifar10", folder)
        held = split_indices("last", len(images), 9, 0)[1]
        hashes = set()
        for pixels, expected in (
            ("unit", images / 255),
            ("standardized", tf.image.per_image_standardization(images).numpy()),
        ):
            how = {"split": "last", "validation_examples": 9, "pixels": pixels}
            found = data.load("cifar10", self.data, **how)
            self.assertAllClose(found.validation.inputs, expected[held], atol=1e-5)
            hashes.add(found.content_hash)
        self.assertLen(hashes, 2)

    def test_text_becomes_sequences_whose_labels_are_the_next_characters(self):
        self.offer("tiny_shakespeare")
        prepare("tiny_shakespeare", self.data, self.raw)
        dataset = data.load("tiny_shakespeare", self.data, length=16, split_seed=3)
        vocabulary = sorted(set(tiny_published.TEXT))
        self.assertEqual(dataset.classes, len(vocabulary))
        self.assertEqual(dataset.input_shape, (16,))
        for examples in (dataset.train, dataset.validation):
            self.assertEqual(examples.inputs.dtype, np.int32)
            for inputs, labels in zip(examples.inputs, examples.labels, strict=True):
                text = "".join(vocabulary[t] for t in (*inputs, labels[-1]))
                self.assertIn(text, tiny_published.TEXT)
                self.assertAllEqual(inputs[1:], labels[:-1])
        count = int(len(tiny_published.TEXT) * 0.95 - 1) // 16
        self.assertEqual(len(dataset.train) + len(dataset.validation), count)
        with self.assertRaisesRegex(UserError, "length is 0"):
            data.load("tiny_shakespeare", self.data, length=0)

    def test_second_preparation_says_it_is_there_and_needs_no_raw_files(self):
        self.offer("cifar10")
        folder = prepare("cifar10", self.data, self.raw)
        before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
        told = []
        self.assertEqual(prepare("cifar10", self.data, None, told), folder)
        self.assertEqual(told, [f"cifar10 is already prepared in {folder}"])
        self.assertEqual(
            before, {file: file.stat().st_mtime_ns for file in folder.iterdir()}
        )

    def test_archive_is_as_good_as_its_members(self):
        self.raw.mkdir()
        self.offer("cifar10", tiny_published.write_archive(self.raw))
        prepare("cifar10", self.data, self.raw)
        self.assertLen(data.load("cifar10", self.data, validation_examples=5).train, 35)

    @parameterized.parameters(*NAMES)
    def test_changed_raw_file_is_refused_and_leaves_nothing(self, name):
        self.offer(name)
        path = self.raw / name / PUBLISHED[name].file_names[0]
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with self.assertRaisesRegex(UserError, f"{path} is not the published file"):
            prepare(name, self.data, self.raw)
        self.assertIsNone(prepared_folder(name, self.data))
        self.assertFalse((self.data / f".preparing-{name}").exists())

    @parameterized.parameters("mnist-train*", f"{ARRAYS}/inputs.bin")
    def test_changed_prepared_set_is_refused(self, files):
        self.offer("mnist")
        folder = prepare("mnist", self.data, self.raw)
        (record,) = folder.glob(files)
        content = bytearray(record.read_bytes())
        content[len(content) // 2] ^= 1
        record.write_bytes(content)
        with self.assertRaisesRegex(UserError, f"remove {folder}.* and prepare"):
            prepare("mnist", self.data, self.raw)

    @parameterized.parameters("mnist", "cifar10")
    def test_set_of_an_older_version_is_read_as_a_whole_until_it_gets_arrays(
        self, name
    ):
        self.offer(name)
        folder = prepare(name, self.data, self.raw)

        def loaded() -> list[data.Dataset]:
            return [
                data.load(name, self.data, validation_examples=4, **division)
                for division in ({}, {"split": "lee2021"}, {"split_seed": 2})
            ]

        with mock.patch.object(tfds, "read_images", side_effect=AssertionError):
            mapped = loaded()
        shutil.rmtree(folder / ARRAYS)
        for one, other in zip(loaded(), mapped, strict=True):
            self.assertEqual(one.content_hash, other.content_hash)
            for split in ("train", "validation"):
                for part in ("inputs", "labels"):
                    self.assertAllEqual(
                        getattr(getattr(one, split), part),
                        np.asarray(getattr(getattr(other, split), part)),
                    )
        (record,) = folder.glob(f"{name}-train*")
        whole = record.read_bytes()
        record.write_bytes(whole[: len(whole) // 2])
        with self.assertRaisesRegex(UserError, f"remove {folder} and prepare"):
            data.load(name, self.data)
        record.write_bytes(whole)
        prepare(name, self.data, None)
        self.assertTrue((folder / ARRAYS / "manifest.json").exists())

    def test_other_set_under_this_name_is_refused(self):
        self.offer("mnist")
        folder = prepare("mnist", self.data, self.raw)
        other = {"mnist": mock.Mock(content="0" * 64, validation_examples=4)}
        with (
            mock.patch.dict(PUBLISHED, other),
            self.assertRaisesRegex(UserError, "does not hold the published 'mnist'"),
        ):
            data.load("mnist", self.data)
        self.assertTrue(folder.exists())

    @pytest.mark.fault
    def test_killed_preparation_leaves_nothing_that_looks_prepared(self):
        self.offer("cifar10")
        words = ["-c", KILLED_IN_THE_MIDDLE, self.raw, self.data]
        run = interpreter.run(words, cwd=ROOT)
        self.assertEqual(run.returncode, -signal.SIGKILL, run.stderr[-500:])
        self.assertTrue((self.data / ".preparing-cifar10" / "tfds").exists())
        with self.assertRaisesRegex(UserError, "is not prepared"):
            data.load("cifar10", self.data)
        prepare("cifar10", self.data, self.raw)
        self.assertFalse((self.data / ".preparing-cifar10").exists())

    def test_two_preparations_at_once_are_refused(self):
        self.offer("cifar10")
        with (
            preparation._workspace("cifar10", self.data),
            self.assertRaisesRegex(UserError, "another process is preparing cifar10"),
        ):
            prepare("cifar10", self.data, self.raw)

    def test_only_what_is_marked_is_deleted(self):
        self.offer("cifar10")
        # As TensorFlow Datasets leaves it, or anybody else.
        half = self.data / "cifar10" / "3.0.2" / "mine"
        workspace = self.data / ".preparing-cifar10" / "mine"
        for place in (half, workspace):
            place.parent.mkdir(parents=True)
            place.write_text("mine")
        with self.assertRaisesRegex(UserError, "is not of this package.* by hand"):
            prepare("cifar10", self.data, self.raw)
        workspace.unlink()
        with self.assertRaisesRegex(UserError, "holds no complete set.* by hand"):
            prepare("cifar10", self.data, self.raw)
        self.assertEqual(half.read_text(), "mine")
        half.unlink()
        self.assertEqual(prepare("cifar10", self.data, self.raw), half.parent)

    def test_links_named_like_the_lock_make_nothing(self):
        self.offer("mnist")
        self.data.mkdir()
        target = self.data / "elsewhere"
        (self.data / ".preparing-mnist.lock").symlink_to(target)
        with self.assertRaisesRegex(UserError, "symbolic links"):
            prepare("mnist", self.data, self.raw)
        self.assertFalse(target.exists())

    def test_what_the_user_can_mend_is_one_sentence(self):
        with self.assertRaisesRegex(UserError, "did you mean 'mnist'"):
            prepare("mnits", self.data, self.raw)
        self.assertFalse(self.data.exists())
        self.raw.mkdir()
        with self.assertRaisesRegex(
            UserError, "does not hold the raw files of 'mnist'"
        ):
            prepare("mnist", self.data, self.raw)
        self.assertEqual(list(self.data.iterdir()), [])
        (self.root / "file").touch()
        with self.assertRaisesRegex(UserError, "cannot prepare mnist in .*file"):
            prepare("mnist", self.root / "file", self.raw)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves the tiny CIFAR-10 archive, trickles /slow, and never answers /dead."""

    archive = b""

    def do_GET(self):  # noqa: N802 (the base class's name)
        if self.path == "/dead":
            time.sleep(1.0)
            return
        if self.path != "/archive":
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.archive)

    def handle(self):
        try:
            super().handle()
        except OSError:  # the client gave up, as it should
            self.close_connection = True

    def log_message(self, *arguments):
        del arguments


class DownloadTest(tf.test.TestCase, parameterized.TestCase):
    """Against a server on this machine."""

    def setUp(self):
        super().setUp()
        self.root = raw_files.new_folder(self)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"
        no_proxy = mock.patch.dict(os.environ, no_proxy="127.0.0.1")
        no_proxy.start()
        self.addCleanup(no_proxy.stop)

    @parameterized.parameters(("/missing", "404"), ("/dead", "timed out"))
    def test_failure_ends_and_says_what_to_do(self, path, reason):
        file = RawFile("file", "0" * 64, self.url + path)
        with self.assertRaisesRegex(UserError, f"{path} .*{reason}.*--raw_dir"):
            download.fetch(file, self.root, stall_seconds=0.3)

    def test_downloaded_archive_is_checked_and_prepared(self):
        path = tiny_published.write_archive(self.root)
        _Handler.archive = path.read_bytes()
        url = self.url + "/archive"
        with tiny_published.in_place_of_published("cifar10", path, url):
            prepare("cifar10", self.root / "data", None)
            _Handler.archive += b"damage"
            with self.assertRaisesRegex(UserError, "is not the published file"):
                prepare("cifar10", self.root / "other", None)
        self.assertIsNotNone(prepared_folder("cifar10", self.root / "data"))
        self.assertIsNone(prepared_folder("cifar10", self.root / "other"))


class RealDataTest(tf.test.TestCase):
    def test_real_text_has_65_characters(self):
        scratch = raw_files.new_folder(self)
        raw_dir = raw_files.real("tiny_shakespeare", scratch)
        prepare("tiny_shakespeare", scratch, raw_dir)
        dataset = data.load("tiny_shakespeare", scratch)
        self.assertEqual(dataset.classes, 65)
        self.assertEqual(dataset.train.inputs.shape, (14_901, 64))


def raw_labels(name: str, raw_dir: Path) -> np.ndarray:
    return raw_files.train_images(name, raw_dir)[1]
