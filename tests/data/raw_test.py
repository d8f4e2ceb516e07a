"""Raw files are found where users have them, checked, and read in file order."""

from __future__ import annotations

import hashlib
import unittest
from unittest import mock

import numpy as np
from absl.testing import parameterized

from dps_tf.core import UserError
from dps_tf.data import raw
from dps_tf.data.raw import PUBLISHED
from tests.data import raw_files


class ReadTest(parameterized.TestCase):
    def test_idx_file_is_read_in_its_own_shape(self):
        path = raw_files.new_folder(self) / "images.gz"
        images, _ = raw_files.random_images(3, (28, 28))
        path.write_bytes(raw_files.idx_bytes(images))
        np.testing.assert_array_equal(raw_files.read_idx(path), images)

    def test_file_that_is_not_idx_is_refused(self):
        path = raw_files.new_folder(self) / "images.gz"
        path.write_bytes(raw_files.gzip.compress(b"\x00\x00\x0d\x01" + bytes(8)))
        with self.assertRaisesRegex(UserError, "not an IDX file of bytes"):
            raw_files.read_idx(path)

    def test_cifar_batches_follow_each_other(self):
        folder = raw_files.new_folder(self)
        images, labels = raw_files.random_images(5, (32, 32, 3))
        for name, part in (("a", slice(0, 2)), ("b", slice(2, 5))):
            content = raw_files.cifar_bytes(images[part], labels[part])
            (folder / name).write_bytes(content)
        read, read_labels = raw_files.read_cifar([folder / "a", folder / "b"])
        np.testing.assert_array_equal(read, images)
        np.testing.assert_array_equal(read_labels, labels)


class FindTest(parameterized.TestCase):
    @parameterized.parameters(
        ("mnist", "."),
        ("mnist", "mnist"),
        ("cifar10", "."),
        ("cifar10", "cifar10"),
        ("cifar10", "cifar-10-batches-bin"),
        ("cifar10", "cifar10/cifar-10-batches-bin"),
        ("tiny_shakespeare", "tiny_shakespeare"),
    )
    def test_folder_is_found_where_users_have_it(self, name, place):
        root = raw_files.new_folder(self)
        (root / place).mkdir(parents=True, exist_ok=True)
        self.assertIsNone(raw.find_folder(PUBLISHED[name], root))
        for file in PUBLISHED[name].file_names:
            (root / place / file).touch()
        self.assertEqual(raw.find_folder(PUBLISHED[name], root), root / place)

    @parameterized.parameters(".", "cifar10")
    def test_archive_is_found(self, place):
        root = raw_files.new_folder(self)
        (root / place).mkdir(exist_ok=True)
        path = root / place / "cifar-10-binary.tar.gz"
        self.assertIsNone(raw.find_archive(PUBLISHED["cifar10"], root))
        path.touch()
        self.assertEqual(raw.find_archive(PUBLISHED["cifar10"], root), path)
        self.assertIsNone(raw.find_archive(PUBLISHED["mnist"], root))

    def test_missing_files_are_listed(self):
        root = raw_files.new_folder(self)
        with self.assertRaisesRegex(UserError, "mnist/: train-images-idx3-ubyte.gz, "):
            raw_files.train_images("mnist", root)
        with self.assertRaisesRegex(
            UserError, "tar.gz, or cifar-10-batches-bin/ with "
        ):
            raw_files.train_images("cifar10", root)


class CheckTest(parameterized.TestCase):
    def test_changed_byte_is_noticed(self):
        path = raw_files.new_folder(self) / "file"
        path.write_bytes(b"content")
        raw.check_file(path, hashlib.sha256(b"content").hexdigest())
        path.write_bytes(b"Content")
        with self.assertRaisesRegex(UserError, "is not the published file"):
            raw.check_file(path, hashlib.sha256(b"content").hexdigest())

    @parameterized.parameters("mnist", "fashion_mnist", "cifar10", "tiny_shakespeare")
    def test_published_sums_are_those_of_tensorflow_datasets(self, name):
        import tensorflow_datasets as tfds

        published = PUBLISHED[name]
        files = published.files or (published.archive.file,)
        recorded = tfds.builder_cls(name).url_infos
        for file in files:
            self.assertEqual(recorded[file.url].checksum, file.sha256)

    @parameterized.parameters("mnist", "fashion_mnist")
    def test_real_images_have_the_published_content(self, name):
        folder = raw_files.real(name, raw_files.new_folder(self))
        raw.check_folder(PUBLISHED[name], raw.find_folder(PUBLISHED[name], folder))
        images, labels = raw_files.train_images(name, folder)
        self.assertEqual(images.shape, (60_000, 28, 28, 1))
        self.assertEqual(raw.content_sum(images, labels), PUBLISHED[name].content)

    def test_tests_without_raw_data_say_why(self):
        with (
            mock.patch.dict("os.environ", DPS_TF_RAW_DATA="/nowhere"),
            self.assertRaisesRegex(unittest.SkipTest, "no raw data in /nowhere"),
        ):
            raw_files.raw_dir()


if __name__ == "__main__":
    unittest.main()
