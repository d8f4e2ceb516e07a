"""Sets of photographs and sentences, small ones in the on-disk format of the real ones.

TensorFlow Datasets writes them, with the features of its own builders, and the code
that reads the real sets reads them.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from dps_tf import data
from dps_tf.core import UserError
from dps_tf.data import open_arrays, sentences, write_arrays
from dps_tf.data.arrays import has_arrays, verify_arrays
from dps_tf.data.preparation import prepare
from dps_tf.data.prepared import check_space
from dps_tf.data.transforms import SquareCrops, decoded_square
from dps_tf.training import Program, StreamedData
from tests.training.problems import Problem, one_device

TRAIN, VALIDATION, HELD_OUT = 40, 8, 5
LABELLED = ("label", "confidence", "source")


def jpeg(seed: int, height: int = 50, width: int = 40) -> bytes:
    """Returns a smooth picture that differs from seed to seed."""
    rows, columns = np.mgrid[:height, :width]
    planes = [rows * 3 + seed, columns * 4, rows + columns + 5 * seed]
    return tf.io.encode_jpeg((np.stack(planes, -1) % 256).astype(np.uint8)).numpy()


def store(root: Path, name: str, version: str, features, splits, config=None) -> None:
    """Writes a set as TensorFlow Datasets does, where it would have built it."""
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=version,
        features=features,
        split_datasets=splits,
        data_dir=str(root),
        config=config,
        file_format="array_record",
        disable_shuffling=True,
    )


def imagenet(root: Path, broken: int | None = None) -> None:
    """Writes a tiny imagenet2012; picture number `broken` is no picture."""
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(num_classes=1000),
            "file_name": tfds.features.Text(),
        }
    )

    def examples(count: int, first: int):
        for i in range(count):
            content = b"no picture" if i == broken and not first else jpeg(first + i)
            yield (
                i,
                {
                    "image": io.BytesIO(content),
                    "label": i % 4 * 250,
                    "file_name": f"n{i}.JPEG",
                },
            )

    splits = {
        "train": list(examples(TRAIN, 0)),
        "validation": list(examples(VALIDATION, 100)),
    }
    store(root, "imagenet2012", "5.1.0", features, splits)


def lm1b(root: Path, texts: list[bytes]) -> None:
    """Writes a tiny lm1b, whose test split is as large as validation asks for."""
    features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
    splits = {
        split: [(i, {"text": text}) for i, text in enumerate(texts)]
        for split in ("train", "test")
    }
    store(root, "lm1b", "1.1.0", features, splits)


def prepared(name: str, root: Path, raw: Path | None = None, **more) -> list[str]:
    """Prepares a set and returns what was told on the way."""
    told: list[str] = []
    prepare(name, root, raw, told.append, **more)
    return told


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("a folder")
    imagenet(root)
    told = prepared("imagenet2012", root)
    assert "imagenet2012/train: 40 of 40 images indexed" in told
    return root


def loaded(root: Path, **more):
    return data.load(
        "imagenet2012",
        root,
        split="given",
        test="given",
        side=28,
        held_out=HELD_OUT,
        **more,
    )


def test_imagenet_is_divided_without_overlap(images):
    found = loaded(images)
    sizes = [len(part) for part in (found.train, found.validation, found.test)]
    assert sizes == [TRAIN - HELD_OUT, VALIDATION, HELD_OUT]
    assert found.input_shape == (28, 28, 3)
    assert found.classes == 1000
    every = np.concatenate(
        [part.inputs[np.arange(len(part))] for part in (found.train, found.test)]
    )
    assert len(np.unique(every.reshape(TRAIN, -1), axis=0)) == TRAIN


def test_subsets_of_imagenet_keep_shares_of_classes_and_number_classes_anew(images):
    half = loaded(images, images_share=0.5)
    whole = np.bincount(loaded(images).train.labels // 250)
    assert np.abs(np.bincount(half.train.labels // 250) - whole / 2).max() <= 0.5
    classes = loaded(images, classes=600)
    assert classes.classes == 600
    assert set(classes.train.labels) == set(classes.validation.labels)
    assert 1 <= len(set(classes.train.labels)) < 4
    assert max(classes.train.labels) < 600
    hashes = {loaded(images).content_hash, half.content_hash, classes.content_hash}
    assert len(hashes) == 3


def test_index_is_kept_and_a_changed_one_is_refused(images, tmp_path):
    assert prepared("imagenet2012", images) == [
        f"imagenet2012 is prepared in {images / 'imagenet2012' / '5.1.0'}"
    ]
    index = images / "imagenet2012" / "5.1.0" / "dps_tf" / "train"
    whole = (index / "labels.bin").read_bytes()
    (index / "labels.bin").write_bytes(whole[:-2])
    with pytest.raises(UserError, match="does not have the size"):
        loaded(images)
    (index / "labels.bin").write_bytes(whole)


def test_picture_that_cannot_be_decoded_is_named(tmp_path):
    imagenet(tmp_path, broken=3)
    prepared("imagenet2012", tmp_path)
    train = loaded(tmp_path).train
    with pytest.raises(UserError, match=r"image 3 of imagenet2012 cannot be decoded"):
        [part.inputs[np.arange(len(part))] for part in (train, loaded(tmp_path).test)]


@pytest.mark.parametrize("size", [None, 10])
def test_archive_by_hand_is_asked_for_or_found_truncated(size, tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    if size is not None:
        (raw / "ILSVRC2012_img_train.tar").write_bytes(b"x" * size)
    expected = "downloaded by hand" if size is None else "truncated"
    with pytest.raises(UserError, match=expected):
        prepared("imagenet2012", tmp_path / "data", raw)
    assert not (tmp_path / "data" / "imagenet2012").exists()


def test_room_on_the_disk_is_asked_for_beforehand(tmp_path):
    with pytest.raises(UserError, match="needs 1,000,000,000,000,000,000 bytes"):
        check_space("x", tmp_path, 10**18, print)


def test_central_crop_is_that_of_resizing_and_cutting_out():
    square = decoded_square(jpeg(1, 64, 64), 64, "a picture")
    crop = SquareCrops(28, 32, 64)
    found, _ = crop(tf.constant(square[None]), tf.constant([0]), None)
    resized = tf.image.resize(square.astype(np.float32), (32, 32))
    expected = resized[2:30, 2:30] - (123.68, 116.78, 103.94)
    np.testing.assert_allclose(found[0], expected, atol=0.01)


def test_crops_of_training_lie_inside_and_differ():
    class Ends:
        def __init__(self, share: float):
            self.share = share

        def integers(self, name, shape, low, high):
            return tf.fill(shape, int(low + self.share * (high - 1 - low)))

        def uniform(self, name, shape, low=0.0, high=1.0):
            return tf.fill(shape, self.share)

    white = tf.fill([1, 40, 40, 3], 255)
    crops = [
        SquareCrops(28, 32, 64)(white, tf.constant([0]), Ends(share))[0]
        for share in (0.0, 0.999)
    ]
    for found in crops:
        # Nothing from outside of the picture, which would be black.
        np.testing.assert_allclose(
            found[0], 255 - np.broadcast_to((123.68, 116.78, 103.94), (28, 28, 3))
        )


@pytest.fixture(scope="module")
def text() -> list[str]:
    words = "the cat sat on a mat and saw two dogs near the old red barn".split()
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(words, 1 + i % 12)) for i in range(300)]


def test_sentences_are_predicted_to_their_end_and_padding_is_not(
    text, tmp_path, monkeypatch
):
    parts = {
        "train": ("train", 0, 250),
        "validation": ("test", 0, 30),
        "test": ("test", 30, 70),
    }
    tiny = sentences.SentenceSet("lm1b", None, parts, 0)
    monkeypatch.setitem(sentences.SETS, "lm1b", tiny)
    lm1b(tmp_path, [line.encode() for line in text])
    prepared("lm1b", tmp_path, sub_words=(30, 10))
    found = data.load(
        "lm1b", tmp_path, split="given", test="given", vocabulary=30, length=10
    )
    sizes = [len(part) for part in (found.train, found.validation, found.test)]
    assert sizes == [250, 30, 40]
    inputs = found.validation.inputs[np.arange(30)]
    labels = found.validation.labels[np.arange(30)]
    import sentencepiece

    model = tmp_path / "lm1b" / "sentences-30-10" / "vocabulary.model"
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for row, line in enumerate(text[:30]):
        whole = [1, *processor.encode(line), 2]
        count = min(10, len(whole) - 1)
        assert inputs[row, :count].tolist() == whole[:count]
        assert labels[row, :count].tolist() == whole[1 : count + 1]
        assert set(labels[row, count:]) <= {-1}
    with pytest.raises(UserError, match=r"there are sentences-30-10: run .*=31"):
        data.load("lm1b", tmp_path, vocabulary=31, length=10)


def test_folder_of_text_is_read_line_by_line(text, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "b.txt").write_text("\n".join(text[150:]))
    (folder / "a.txt").write_text("\n\n".join(text[:150]) + "\n")
    prepared("text_folder", tmp_path, folder, sub_words=(30, 10))
    found = data.load("text_folder", tmp_path, folder="mine", vocabulary=30, length=10)
    assert len(found.train) + len(found.validation) == 300
    place = tmp_path / "text_folder" / "mine" / "sentences-30-10"
    (place / "vocabulary.model").write_bytes(b"no vocabulary")
    with pytest.raises(UserError, match="no vocabulary of SentencePiece"):
        prepared("text_folder", tmp_path, folder, sub_words=(30, 10))


@pytest.mark.parametrize(
    ("content", "size", "expected"),
    [
        ("caf\xe9 au lait\n".encode("latin-1"), 40, "line 1 of .* is not UTF-8"),
        (b"too little text\n", 4000, "no vocabulary of 4,000 sub-words"),
    ],
)
def test_text_that_cannot_be_used_is_one_sentence(content, size, expected, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=expected) as found:
        prepared("text_folder", tmp_path, folder, sub_words=(size, 10))
    assert "\n" not in str(found.value)
    assert not list((tmp_path / "text_folder").rglob("manifest.json"))


def test_vocabulary_of_another_size_is_refused(text, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(text))
    prepared("text_folder", tmp_path, folder, sub_words=(30, 10))
    place = tmp_path / "text_folder" / "mine"
    (place / "sentences-30-10").rename(place / "sentences-50-10")
    with pytest.raises(UserError, match="has 30 sub-words and not 50"):
        prepared("text_folder", tmp_path, folder, sub_words=(50, 10))


def test_folder_of_images_has_a_class_for_each_subfolder(tmp_path):
    root = tmp_path / "pets"
    for name in ("cats", "dogs"):
        (root / name).mkdir(parents=True)
        for i in range(6):
            (root / name / f"{i}.jpg").write_bytes(jpeg(i + 10 * len(name)))
    prepared("image_folder", tmp_path, root)
    found = data.load(
        "image_folder", tmp_path, folder="pets", side=28, validation_examples=4
    )
    assert (len(found.train), len(found.validation), found.classes) == (8, 4, 2)
    (root / "cats" / "9.png").write_bytes(b"\x89PNG but no more")
    with pytest.raises(UserError, match=r"9\.png cannot be decoded"):
        prepared("image_folder", tmp_path, root)


def test_open_images_count_what_people_found(tmp_path):
    names = [str(i) for i in range(7186)]
    sources = ["verification", "crowdsource-verification", "machine"]
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "objects_trainable": tfds.features.Sequence(
                {
                    "label": tfds.features.ClassLabel(names=names),
                    "confidence": np.int32,
                    "source": tfds.features.ClassLabel(names=sources),
                }
            ),
        }
    )
    objects = [
        [("5", 10, "verification"), ("9", 10, "machine"), ("7", 0, "verification")],
        [("9", 10, "machine")],
        [("3", 10, "crowdsource-verification"), ("7185", 10, "verification")],
    ]

    def examples():
        for i, found in enumerate(objects):
            named = [dict(zip(LABELLED, values, strict=True)) for values in found]
            picture = io.BytesIO(jpeg(i))
            yield i, {"image": picture, "objects_trainable": named}

    splits = {split: list(examples()) for split in ("train", "validation", "test")}
    config = tfds.core.BuilderConfig(name="300k")
    store(tmp_path, "open_images_v4", "2.0.0", features, splits, config)
    prepared("open_images_v4", tmp_path)
    found = data.load("open_images_v4", tmp_path, split="given", test="given", side=28)
    labels = np.asarray(found.train.labels[np.arange(2)])
    # The order of a seed; the picture that only a machine has named is left out.
    positives = {tuple(np.flatnonzero(row)) for row in labels}
    assert positives == {(5,), (3, 7185)}
    assert labels.shape == (2, 7186)


def test_rows_that_a_killed_writer_has_left_are_not_made_again(tmp_path):
    made = []

    def rows(first: int, until: int = 9):
        for row in range(first, 9, 3):
            if row >= until:
                raise KeyboardInterrupt
            made.append(row)
            numbers = np.arange(row, row + 3, dtype=np.int32)
            yield numbers[:, None], numbers * 2

    with pytest.raises(KeyboardInterrupt):
        write_arrays(tmp_path, lambda first: rows(first, 6), {"a": 1})
    assert not has_arrays(tmp_path)
    with (tmp_path / "inputs.bin").open("ab") as file:
        file.write(b"x")  # half a row
    write_arrays(tmp_path, rows, {"a": 1})
    assert made == [0, 3, 6]
    verify_arrays(tmp_path)
    found = open_arrays(tmp_path)
    assert found.inputs[:, 0].tolist() == list(range(9))
    assert found.labels.tolist() == list(range(0, 18, 2))
    with pytest.raises(KeyboardInterrupt):
        write_arrays(tmp_path, lambda first: rows(first, 6), {"a": 1})
    write_arrays(tmp_path, rows, {"a": 2})
    assert made == [0, 3, 6, 0, 3, 0, 3, 6]  # other facts: from the beginning


def test_photographs_are_cropped_and_learned_inside_the_compiled_step(images):
    found = loaded(images)
    problem = Problem(found, network="mlp", optimizer="sgd", batch_size=4)
    program = Program(problem.task, StreamedData(found, one_device()), 4)
    problem.begin(program, learning_rate=1e-4)
    advance = program.advance(np.arange(8, dtype=np.int32).reshape(2, 4))
    assert (advance.steps, advance.diverged) == (2, False)
    metrics = program.evaluate().metrics
    assert 0 <= metrics["validation/classification_error"] <= 1
