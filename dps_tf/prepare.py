"""Prepares a data set for training: `python -m dps_tf.prepare --dataset=NAME ...`.

Training never downloads data; this command does, or reads raw files on the disk.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from dps_tf._tensorflow import import_tensorflow
from dps_tf.cli import flags as common
from dps_tf.cli.command_line import FINISHED, command
from dps_tf.core import UserError

common.section("What is prepared")
_DATASET = flags.DEFINE_string(
    "dataset",
    None,
    "mnist, fashion_mnist, cifar10, tiny_shakespeare, imagenet2012, open_images_v4, "
    "lm1b, c4; or text_folder, a folder of your own.",
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Folder for prepared sets, made if it is missing."
)
_RAW_DIR = flags.DEFINE_string(
    "raw_dir",
    None,
    "Folder with the published raw files, or with a folder NAME that holds them: the "
    "four IDX files, cifar-10-batches-bin/ or cifar-10-binary.tar.gz, input.txt. "
    "Without it they are downloaded. For imagenet2012 it holds the two archives, which "
    "have to be downloaded by hand; for text_folder it is your folder.",
)
common.section("Text")
_VOCABULARY = flags.DEFINE_integer(
    "vocabulary", 32_000, "Sub-words of lm1b, c4 and text_folder.", lower_bound=8
)
_LENGTH = flags.DEFINE_integer(
    "length", 64, "Sub-words of a sentence that are kept.", lower_bound=1
)


@command
def main() -> int:
    """Prepares the data set that the flags name; returns the exit code 0."""
    common.require(_DATASET, _DATA_DIR)
    import_tensorflow(in_command=True)
    from dps_tf.data.preparation import prepare

    raw_dir = None
    if _RAW_DIR.value is not None:
        raw_dir = Path(_RAW_DIR.value)
        if not raw_dir.is_dir():
            raise UserError(f"--raw_dir={raw_dir} is not a folder")
    sub_words = (_VOCABULARY.value, _LENGTH.value)
    prepare(_DATASET.value, Path(_DATA_DIR.value), raw_dir, print, sub_words)
    return FINISHED


if __name__ == "__main__":
    main()
