"""Raw files are found where users have them, checked, and read in file order."""

from __future__ import annotations

import hashlib

from absl.testing import parameterized

from dps_tf.core import UserError
from dps_tf.data import raw
from dps_tf.data.raw import PUBLISHED
from tests.data import raw_files


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
