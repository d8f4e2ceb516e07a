"""What cannot be prepared: one sentence, and nothing half made in the data folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tests.commands import one_process
from tests.data.large_sets_test import jpeg

# The two archives at sizes that this test can make: their contents are at fault.
_SMALL_ARCHIVES = """
from dataclasses import replace
from dps_tf.data.photographs import SETS
SETS["imagenet2012"] = replace(
    SETS["imagenet2012"],
    manual=(("ILSVRC2012_img_train.tar", 700), ("ILSVRC2012_img_val.tar", 700)),
    built_bytes=1,
)
"""
SAID = {
    "no archive": "ILSVRC2012_img_train.tar has to be downloaded by hand from http",
    "truncated": "ILSVRC2012_img_train.tar is truncated or another file: it has 10",
    "cut inside": "TensorFlow Datasets cannot build imagenet2012 (",
    "no copy": "put it into ",
    "not decoded": "9.png cannot be decoded",
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
    "not decoded": ("image_folder",),
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
    if case == "not decoded":
        for name in ("cats", "dogs"):
            (raw / name).mkdir()
            (raw / name / "0.jpg").write_bytes(jpeg(1))
        (raw / "dogs" / "9.png").write_bytes(b"\x89PNG but no more")
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


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Path, dict[str, one_process.Done]]:
    """The data folders of all cases, and how the command ended for each."""
    root = tmp_path_factory.mktemp("cases")
    lines = []
    for case in SAID:
        write_raw(case, root / case / "raw")
        name, *more = FLAGS[case]
        line = [f"--dataset={name}", f"--data_dir={root / case / 'data'}", *more]
        if case not in ("no archive", "no folder"):
            line.append(f"--raw_dir={root / case / 'raw'}")
        lines.append(line)
    text = write_text(root / "mine")
    line = ["--dataset=text_folder", f"--raw_dir={root / 'mine'}", "--vocabulary=30"]
    lines += [[*line, f"--data_dir={root / 'data'}", "--length=8"]] * 3
    place = list(SAID).index("cut inside")
    before = {
        0: "from dps_tf.data.photographs import SETS; KEPT = dict(SETS)",
        place: _SMALL_ARCHIVES,
        place + 1: "SETS.update(KEPT)",
        len(lines) - 1: f"open({str(text)!r}, 'a').write('\\nthe old red barn')",
    }
    done = one_process.run("prepare", lines, root, before)
    names = [*SAID, "text", "text again", "text changed"]
    return root, dict(zip(names, done, strict=True))


@pytest.mark.parametrize("case", SAID)
def test_it_is_one_sentence_and_nothing_is_left(ended, case):
    root, done = ended
    assert done[case].code == 2
    assert SAID[case] in done[case].sentence
    data = root / case / "data"
    left = {path.relative_to(data).as_posix() for path in data.rglob("*")}
    assert left <= {f".preparing-{FLAGS[case][0]}.lock"}


def test_text_that_was_changed_is_another_set(ended):
    """Its sub-words and its vocabulary are made anew."""
    _, done = ended
    first, again, changed = (done[f"text{n}"] for n in ("", " again", " changed"))
    assert [first.code, again.code, changed.code] == [0, 0, 0], done
    assert "300 sentences" in first.out
    assert "sentences in sub-words" not in again.out
    assert "the text is another one than before" in changed.out
    assert "making a vocabulary" in changed.out
    assert "301 sentences" in changed.out
