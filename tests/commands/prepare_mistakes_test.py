"""What cannot be prepared: one sentence, and nothing half made in the data folder."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests import interpreter
from tests.data.large_sets_test import imagenet

# The two archives at sizes that this test can make: their contents are at fault.
_SMALL_ARCHIVES = """
from dataclasses import replace
from dps_tf.data.photographs import SETS
SETS["imagenet2012"] = replace(
    SETS["imagenet2012"],
    manual=(("ILSVRC2012_img_train.tar", 700), ("ILSVRC2012_img_val.tar", 700)),
    built_bytes=1,
)
from dps_tf import prepare
prepare.main()
"""
SAID = {
    "no archive": "ILSVRC2012_img_train.tar has to be downloaded by hand from http",
    "truncated": "ILSVRC2012_img_train.tar is truncated or another file: it has 10",
    "cut inside": "TensorFlow Datasets cannot build imagenet2012 (",
    "no copy": "put it into ",
    "broken record": "image 3 of imagenet2012/train cannot be decoded",
    "other encoding": "line 41 of ",
    "too little": "no vocabulary of 4,000 sub-words can be made from this text",
    "no folder": "the data set 'text_folder' is a folder of yours: name it with",
    "no text": "has no file *.txt",
}
FLAGS = {
    "no archive": ("imagenet2012",),
    "truncated": ("imagenet2012",),
    "cut inside": ("imagenet2012",),
    "no copy": ("c4",),
    "broken record": ("imagenet2012",),
    "other encoding": ("text_folder", "--vocabulary=30", "--length=8"),
    "too little": ("text_folder", "--vocabulary=4000"),
    "no folder": ("text_folder",),
    "no text": ("text_folder",),
}


def write_raw(case: str, raw: Path) -> None:
    """Makes the folder of raw files of a case."""
    raw.mkdir(parents=True)
    if case == "truncated":
        (raw / "ILSVRC2012_img_train.tar").write_bytes(b"x" * 10)
    if case == "cut inside":
        for part in ("train", "val"):
            path = raw / f"ILSVRC2012_img_{part}.tar"
            with tarfile.open(path, "w") as tar:
                member = tarfile.TarInfo("n01440764.tar")
                member.size = 5000
                tar.addfile(member, io.BytesIO(bytes(5000)))
            path.write_bytes(path.read_bytes()[:700])
    if case == "other encoding":
        lines = [f"the cat sat on mat {i % 7} and saw two dogs" for i in range(40)]
        content = "\n".join(lines).encode() + b"\ncaf\xe9 au lait\n"
        (raw / "a.txt").write_bytes(content)
    if case == "too little":
        (raw / "a.txt").write_bytes(b"too little text\n")


def write_text(folder: Path) -> Path:
    """Returns a file of 300 lines in a folder of text."""
    folder.mkdir()
    words = "the cat sat on a mat and saw two dogs near the old red barn".split()
    lines = [" ".join(words[i % 5 : 6 + i % 9]) for i in range(300)]
    text = folder / "a.txt"
    text.write_text("\n".join(lines))
    return text


def prepared(
    folder: Path, *flags: str, script: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Returns how the command ended, with `data` in a folder for what it makes."""
    program = ["-m", "dps_tf.prepare"] if script is None else ["-c", script]
    return interpreter.run([*program, f"--data_dir={folder / 'data'}", *flags])


@pytest.mark.parametrize("case", SAID)
def test_it_is_one_sentence_and_nothing_is_left(case, tmp_path):
    write_raw(case, tmp_path / "raw")
    name, *flags = FLAGS[case]
    data = tmp_path / "data"
    if case == "broken record":
        imagenet(data, broken=3)
    before = set(data.rglob("*"))
    if case not in ("no archive", "no folder"):
        flags.append(f"--raw_dir={tmp_path / 'raw'}")
    script = _SMALL_ARCHIVES if case == "cut inside" else None
    done = prepared(tmp_path, f"--dataset={name}", *flags, script=script)
    assert done.returncode == 2, done.stderr
    (sentence,) = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    assert SAID[case] in sentence
    assert "Traceback" not in done.stderr
    assert set(data.rglob("*")) - before <= {data / f".preparing-{name}.lock"}


def test_a_file_of_text_may_have_a_name_that_is_no_text(tmp_path):
    text = write_text(tmp_path / "mine")
    text.rename(text.with_name(os.fsdecode(b"a\xff.txt")))
    flags = ["--dataset=text_folder", f"--raw_dir={tmp_path / 'mine'}"]
    flags += ["--vocabulary=30", "--length=8"]
    first, again = prepared(tmp_path, *flags), prepared(tmp_path, *flags)
    assert [first.returncode, again.returncode] == [0, 0], first.stderr
    assert "300 sentences" in first.stdout
    assert "sentences in sub-words" not in again.stdout


def test_text_that_was_changed_is_another_set(tmp_path):
    """Its sub-words and its vocabulary are made again."""
    text = write_text(tmp_path / "mine")
    flags = ["--dataset=text_folder", f"--raw_dir={tmp_path / 'mine'}"]
    flags += ["--vocabulary=30", "--length=8"]
    first, again = prepared(tmp_path, *flags), prepared(tmp_path, *flags)
    with text.open("a") as file:
        file.write("\nthe old red barn")
    changed = prepared(tmp_path, *flags)
    assert [each.returncode for each in (first, again, changed)] == [0, 0, 0]
    assert "300 sentences" in first.stdout
    assert "sentences in sub-words" not in again.stdout
    assert "the text has changed" in changed.stdout
    assert "making a vocabulary" in changed.stdout
    assert "301 sentences" in changed.stdout
