"""Sets of photographs and sentences, small ones in the on-disk format of the real ones.

TensorFlow Datasets writes them, with the features of its own builders, and the code
that reads the real sets reads them.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from dps_tf import data
from dps_tf.core import UserError
from dps_tf.data import open_arrays, photographs, sentences, sub_words, write_arrays
from dps_tf.data import tfds as reading
from dps_tf.data.arrays import Arrays, has_arrays, verify_arrays
from dps_tf.data.preparation import prepare
from dps_tf.data.prepared import check_space
from dps_tf.models import StepDraws
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


def c4(root: Path, texts: list[str], for_validation: int) -> None:
    """Writes a tiny c4/en, of the only feature that is read."""
    features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
    examples = [(i, {"text": text}) for i, text in enumerate(texts)]
    splits = {"train": examples, "validation": examples[:for_validation]}
    store(root, "c4", "3.1.0", features, splits, tfds.core.BuilderConfig(name="en"))


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


def test_index_holds_sum_and_label_of_each_image_in_order(images):
    index = open_arrays(images / "imagenet2012" / "5.1.0" / "dps_tf" / "train")
    sums = [hashlib.sha256(jpeg(i)).digest() for i in range(TRAIN)]
    assert index.inputs.tobytes() == b"".join(sums)
    assert index.labels.tolist() == [i % 4 * 250 for i in range(TRAIN)]


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


class Colours:
    """Records that hold an image for each class, whose colours tell which."""

    def __init__(self, classes: int, each: int):
        self.labels = np.tile(np.arange(classes), each)
        self.images = [
            tf.io.encode_png(np.full((4, 4, 3), (i % 250, i // 250, 0), np.uint8))
            for i in range(classes)
        ]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row: int):
        return {"image": self.images[self.labels[row]].numpy()}


@pytest.fixture
def thousand_classes(monkeypatch):
    """Has `load` find ImageNet with four images of each class, one for validation."""
    found = {"train": Colours(1000, 4), "validation": Colours(1000, 1)}

    def opened(name, data_dir, split):
        labels = found[split].labels
        return photographs.Split(found[split], Arrays(labels, labels, split), name)

    monkeypatch.setattr(photographs, "opened", opened)
    return {"name": "imagenet2012", "split": "given", "held_out": 0, "side": 4}


def test_half_of_the_classes_are_numbered_anew_and_alike(thousand_classes):
    half = data.load(**thousand_classes, classes=500)
    assert half.classes == 500
    assert half.content_hash != data.load(**thousand_classes).content_hash
    classes = {}
    for part, each in ((half.train, 4), (half.validation, 1)):
        assert np.bincount(part.labels).tolist() == [each] * 500
        pixels = np.rint(part.inputs[np.arange(500)][:, 0, 0] + (123.68, 116.78, 0))
        for label, found in zip(part.labels, pixels @ (1, 250, 0), strict=False):
            assert classes.setdefault(label, found) == found
    assert len(set(classes.values())) == len(classes) == 500


def test_shares_of_imagenet_are_taken_of_each_class_and_lie_in_larger_ones(images):
    sets = [loaded(images, images_share=share) for share in (0.2, 0.5, 0.8, 1)]
    each = [np.bincount(found.train.labels // 250) for found in sets]
    assert np.abs(each[1] - each[3] / 2).max() <= 0.5
    rows = [
        {image.tobytes() for image in found.train.inputs[np.arange(len(found.train))]}
        for found in sets
    ]
    for smaller, larger in itertools.pairwise(rows):
        assert smaller < larger
    for found in sets:
        np.testing.assert_array_equal(
            found.validation.labels, sets[3].validation.labels
        )
    assert len({found.content_hash for found in sets}) == 4


@pytest.mark.parametrize("share", [0, 1.5, float("nan")])
def test_share_of_imagenet_outside_its_range_is_refused(images, share):
    with pytest.raises(UserError, match=r"images_share is .*above 0, at most 1"):
        loaded(images, images_share=share)


def test_picture_that_cannot_be_decoded_is_named_and_no_index_left(tmp_path):
    imagenet(tmp_path, broken=3)
    match = r"image 3 of imagenet2012/train cannot be decoded"
    with pytest.raises(UserError, match=match):
        prepared("imagenet2012", tmp_path)
    assert not (tmp_path / "imagenet2012" / "5.1.0" / "dps_tf").exists()


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
    match = "needs at least 1,000,000,000,000,000,000 bytes"
    with pytest.raises(UserError, match=match):
        check_space("x", tmp_path, 10**18, print)


@pytest.mark.parametrize("name", ["lm1b", "open_images_v4"])
def test_known_size_of_a_set_counts_what_is_downloaded(name):
    downloads = sum(info.size for info in tfds.builder_cls(name).url_infos.values())
    assert 0 < downloads <= {**photographs.SETS, **sentences.SETS}[name].built_bytes


def leave(monkeypatch, free: int) -> None:
    """Has every disk tell so many free bytes."""
    usage = SimpleNamespace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.fixture
def nothing_is_fetched(monkeypatch):
    def stopped(*_):
        raise RuntimeError("stopped")

    monkeypatch.setattr(reading, "build", stopped)


@pytest.mark.usefixtures("nothing_is_fetched")
def test_what_was_downloaded_before_needs_no_more_room(tmp_path, monkeypatch):
    leave(monkeypatch, 694_000_000_000)
    needed = "open_images_v4 needs at least 694,700,000,000 bytes"
    with pytest.raises(UserError, match=needed):
        prepared("open_images_v4", tmp_path)
    (tmp_path / "downloads" / "open_images_v4").mkdir(parents=True)
    with (tmp_path / "downloads" / "open_images_v4" / "file").open("wb") as file:
        file.truncate(800_000_000)
    with pytest.raises(UserError, match=r"cannot build open_images_v4 \(stopped\)"):
        prepared("open_images_v4", tmp_path)


@pytest.mark.usefixtures("nothing_is_fetched")
def test_room_for_sub_words_is_asked_for_with_that_for_the_set(tmp_path, monkeypatch):
    """Download and set, and for each sentence 65 sub-words and how many count."""
    rows = 30_301_028 + 6_075 + 6_206
    wanted = 6_520_000_000 + rows * (65 * 2 + 4)
    leave(monkeypatch, wanted - 1)
    with pytest.raises(UserError, match=f"lm1b needs at least {wanted:,} bytes"):
        prepared("lm1b", tmp_path)
    assert not list(tmp_path.rglob("*lm1b*"))


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
    given = {"split": "given", "vocabulary": 30, "length": 10}
    shorter = data.load("lm1b", tmp_path, training_length=4, **given)
    assert shorter.input_shape == (None,)
    np.testing.assert_array_equal(shorter.validation.inputs[np.arange(30)], inputs)
    stored = shorter.step_examples
    pair = [tf.constant(a[np.arange(9)]) for a in (stored.inputs, stored.labels)]
    draws = StepDraws(tf.constant(1), tf.constant(2), 0, 9)
    for whole, short in zip(pair, shorter.transform(*pair, draws), strict=True):
        np.testing.assert_array_equal(whole[:, :4], short)
    same = data.load("lm1b", tmp_path, training_length=10, **given)
    assert same.input_shape == (10,)
    for wrong in (0, 11):
        with pytest.raises(UserError, match=f"training_length is {wrong}.*1 to the 10"):
            data.load("lm1b", tmp_path, training_length=wrong, **given)


def test_examples_of_c4_are_the_beginnings_of_all_its_documents(
    text, tmp_path, monkeypatch
):
    documents = [" ".join(text[i : i + 1 + i % 40]) for i in range(250)]
    documents += ["nospace" * 30, " " * 300 + "a mat", "a \u0301" * 90, "cat\n" * 90]
    # However far the ten sub-words that are kept reach.
    documents += [" " * i + documents[i] for i in range(40, 100)]
    c4(tmp_path, documents, 30)
    parts = {**sentences.SETS["c4"].parts, "train": ("train", 0, 100)}
    with monkeypatch.context() as patched:
        smaller = sentences.SentenceSet("c4", "en", parts, 0)
        patched.setitem(sentences.SETS, "c4", smaller)
        prepared("c4", tmp_path, sub_words=(31, 10))
    told = prepared("c4", tmp_path, sub_words=(35, 10))
    wanted = (len(documents) + 30) * (11 * 2 + 4)
    assert told[0].startswith(f"c4: at least {wanted:,} bytes will be written")
    found = data.load("c4", tmp_path, split="given", vocabulary=35, length=10)
    assert len(found.validation) == 30
    import sentencepiece

    folder = tmp_path / "c4" / "sentences-35-10"
    model = str(folder / "vocabulary.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    rows = np.asarray(open_arrays(folder / "train").inputs)
    whole = [[1, *processor.encode(document), 2] for document in documents]
    expected = [(row + [-1] * 11)[:11] for row in whole]
    assert rows.tolist() == expected
    # What was prepared with fewer rows stays, and what is written needs no more room.
    leave(monkeypatch, 0)
    prepared("c4", tmp_path, sub_words=(31, 10))
    assert len(open_arrays(tmp_path / "c4/sentences-31-10/train").labels) == 100
    (folder / "train" / "manifest.json").unlink()
    (folder / "train" / "inputs.bin").write_bytes(rows[:-1].tobytes())
    with pytest.raises(UserError, match="needs at least 22 bytes"):
        prepared("c4", tmp_path, sub_words=(35, 10))
    # No number of documents is too many.
    monkeypatch.setattr(reading, "examples", lambda *_: 364_868_892)
    wanted = (364_868_892 + 6_075) * (65 * 2 + 4)
    with pytest.raises(UserError, match=f"needs at least {wanted:,} bytes"):
        prepared("c4", tmp_path)


def test_a_vocabulary_is_made_of_the_first_texts_only(text, tmp_path, monkeypatch):
    def vocabulary(name: str, lines: list[str]) -> bytes:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.txt").write_text("\n".join(lines))
        prepared("text_folder", tmp_path, folder, sub_words=(30, 10))
        place = tmp_path / "text_folder" / name / "sentences-30-10"
        return (place / "vocabulary.model").read_bytes()

    part, whole = vocabulary("part", text[:100]), vocabulary("whole", text)
    assert part != whole
    most = sum(map(len, text[:100]))
    monkeypatch.setattr(sub_words, "_MOST_CHARACTERS", most)
    assert vocabulary("limited", text) == part
    monkeypatch.setattr(sub_words, "_MOST_CHARACTERS", most + 1)
    assert vocabulary("another", text) not in (part, whole)


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


def test_a_pipe_among_the_files_is_refused_and_not_waited_for(tmp_path):
    root = tmp_path / "mine"
    root.mkdir()
    os.mkfifo(root / "two.txt")
    with pytest.raises(UserError, match=r"two\.txt is no regular file"):
        prepared("text_folder", tmp_path / "data", root, sub_words=(30, 10))


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
