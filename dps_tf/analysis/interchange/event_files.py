"""Reads TensorBoard's event files as runs.

The protocol buffers of the package tensorboard decode them, without TensorFlow. A file
is a sequence of records, each with a checksum.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.checks import INCOMPLETE, measured
from dps_tf.analysis.interchange.run_tables import Runs
from dps_tf.analysis.interchange.runs import (
    OTHER_STEPS,
    SPLITS,
    Run,
    curve_of,
    runs_of,
    split_of,
)
from dps_tf.core import UserError

_START = 1  # SessionLog.START
_VERSUS = re.compile(
    rf"_vs_iterations$|[ _-]vs[ _-].*({OTHER_STEPS.pattern})|(^|/)samples/", re.I
)
_HPARAMS = "hparams"
"""The part of a run that `add_hparams` writes into a folder of its own."""


def _modules(*names: str) -> list[Any]:
    """Returns modules of the package tensorboard, which is imported when needed."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise UserError(
            f"event files need the package tensorboard ({error}): pip install "
            "'tensorboard>=2.20'."
        ) from error


def from_tensorboard(folder: str | Path, **options: Any) -> Runs:
    """Returns the runs of a folder, one for each folder in it with event files.

    Several folders are one run where their writer made them so: `train`, `validation`,
    `eval` and the like inside of a run or around all runs, and the folders of
    `add_scalars` and `add_hparams`. Values of `add_hparams` are metaparameters; its
    metrics have no step and are left out. Keras numbers epochs from 0: give
    `steps_per_report` and `first_report=0` for its tags, which begin with `epoch_`.
    Events after a restart mark replace earlier ones from its step on, as TensorBoard
    shows them. A run with a file that is damaged, or ends within a record, counts as
    cut off at that place. Notes say so.
    Event files do not record whether any other run was cut off: state it by
    `about={run: {"status": "INCOMPLETE"}}`.

    Args:
        folder: the folder that `tensorboard --logdir` would show.
        options: see `runs.runs_of`.

    Raises:
        UserError: no event file, one that holds something else, epochs without
            `steps_per_report`, or no tensorboard.
    """
    root = Path(folder).expanduser().absolute()
    is_folder = foreign_files.kind_of(root) == "folder"
    named = sorted(root.rglob("*tfevents*")) if is_folder else []
    # Trash lies in hidden folders, and copies that Jupyter keeps.
    hidden = [path for path in named if "/." in str(path).removeprefix(str(root))]
    places: dict[Path, list[Path]] = defaultdict(list)
    for path in sorted({*named} - {*hidden}):
        if foreign_files.kind_of(path) == "file" and not path.is_symlink():
            places[path.parent.relative_to(root)].append(path)
    if not places:
        raise UserError(f"{str(root)!r} holds no event file of TensorBoard.")
    events = _Events()
    folders = {place: events.folder(paths) for place, paths in places.items()}
    if events.of_epochs and "steps_per_report" not in options:
        raise UserError(
            f"{str(root)!r} has the tag {min(events.of_epochs)!r}, by which Keras "
            "numbers epochs: give steps_per_report, the updates of an epoch, and "
            "first_report=0; or 1 and 1 if steps are updates."
        )
    for found in folders.values() if events.of_epochs else ():
        for row in found.values.values():  # Keras numbers these by updates
            for tag in [tag for tag in row if tag.startswith("batch_")]:
                del row[tag]
                found.last.pop(tag, None)
    tags = set().union(*(found.tags() for found in folders.values()))
    for tag in sorted(events.replaced.keys() - tags):
        raise UserError(
            f"{events.replaced[tag]!r} begins with a restart mark that replaces all "
            f"values of {tag!r}: if two programs wrote into its folder, give each "
            "one's files a folder."
        )
    parts: dict[str, list[tuple[str, _Folder]]] = defaultdict(list)
    for place, found in folders.items():
        owner, part = _place(place, folders)
        parts[owner.as_posix()].append((part, found))
    runs = (_run(name, own) for name, own in sorted(parts.items()))
    read, home = runs_of(runs, str(root), **options), root.resolve()
    links = sorted(path for path in root.rglob("*") if path.is_symlink())
    links = [x for x in links if not Path(os.path.realpath(x)).is_relative_to(home)]
    kind = f"one of {len(links)} links out of the folder: copy what they point to"
    notes = [f"{str(path)!r} is left out, {kind}." for path in links[:1]]
    kind = f"one of {len(hidden)} event files in hidden folders"
    notes += [f"{str(path)!r} is left out, {kind}." for path in hidden[:1]]
    of_epochs = events.of_epochs if options.get("steps_per_report") != 1 else ()
    notes += _beyond_epochs(folders.values(), of_epochs)
    return replace(read, notes=(*read.notes, *notes))


def _beyond_epochs(
    folders: Iterable[_Folder], of_epochs: Collection[str]
) -> Iterator[str]:
    """Yields a note if a tag has steps beyond the epochs of Keras beside it."""
    epochs = {tag.removeprefix("epoch_") for tag in of_epochs}
    ends = [(step, tag) for found in folders for tag, step in found.last.items()]
    last = max((step for step, tag in ends if tag in epochs), default=math.inf)
    for step, tag in [x for x in ends if x[0] > last and x[1] not in epochs][:1]:
        yield (
            f"{tag!r} ends at step {step}, and epochs at {last}: steps_per_report "
            "counts for both; for a goal on what is numbered by updates, give 1 and 1."
        )


@dataclass
class _Folder:
    """What the event files of one folder hold: scalars by step and tag."""

    values: dict[int, dict[str, float]] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    end: int | None = None  # the last step before a damage
    last: dict[str, int] = field(default_factory=dict)
    back: set[str] = field(default_factory=set)  # tags whose steps went back
    several: list[str] = field(default_factory=list)  # metaparameters set anew

    def tags(self) -> set[str]:
        return {tag for row in self.values.values() for tag in row}


def _place(place: Path, folders: Mapping[Path, _Folder]) -> tuple[Path, str]:
    """Returns the run of a folder, and its part of it: a split, another word, or ""."""
    parts, above, own = place.parts, place.parent, folders[place]
    if not parts:
        return place, ""
    tags = own.tags()
    for tag in tags if len(tags) == 1 else ():
        # add_scalars(tag, {part: value}), of PyTorch or of tensorboardX.
        start, outer = f"{tag.replace('/', '_')}_", place.parents[tag.count("/") + 1 :]
        owner = next((folder for folder in place.parents if folder in folders), place)
        below = place.relative_to(owner).as_posix()  # a part's name may have a slash
        if below.startswith(start):
            return owner, below.removeprefix(start)
        if outer and outer[0] in folders and place.parent == outer[0] / tag:
            return outer[0], parts[-1]
    is_summary = own.columns and len(own.values) <= 1 and above in folders
    if is_summary and folders[above].values:
        return above, _HPARAMS
    if parts[-1].startswith("eval_") and above in folders and folders[above].values:
        return above, f"{parts[-1]}/"  # a named evaluation of TensorFlow's Estimator
    told = {split for tag in tags if (split := split_of(tag))}
    # A folder `test` whose tags name other splits is a run of that name.
    is_run = above not in folders and told - {SPLITS.get(parts[-1].lower())}
    if parts[-1].lower() in SPLITS and not is_run:
        return above, parts[-1].lower()
    tops = {other.parts[0].lower() if other.parts else "" for other in folders}
    if len(tops) > 1 and tops <= set(SPLITS):
        return Path(*parts[1:]), parts[0].lower()
    return place, ""


def _run(name: str, parts: Sequence[tuple[str, _Folder]]) -> Run:
    """Returns the run of some folders, each a part of it."""
    values: dict[int, dict[str, float]] = defaultdict(dict)
    columns: dict[str, Any] = {}
    several: list[str] = []
    for part, found in parts:
        several += found.several
        several += [x for x, v in found.columns.items() if columns.get(x, v) != v]
        columns |= found.columns
        for step, row in found.values.items() if part != _HPARAMS else ():
            for tag, number in row.items():
                is_split = part in SPLITS or part.endswith("/")
                name_of = f"{part}/{tag}" if is_split else f"{tag}_{part}"
                # A tag that names its split is not of the folder's.
                is_named = not part or (part in SPLITS and split_of(tag))
                values[step][tag if is_named else name_of] = number
    notes = [note for _, found in parts for note in found.notes]
    if several:
        which = ", ".join(sorted({*several}))
        notes.append(
            f"run {name!r} has several values of {which}: the last one counts."
        )
    note = " ".join(notes)
    ends = [found.end for _, found in parts if found.end is not None]
    if not ends:
        return Run(name, curve_of(values), columns, note=note)
    # Later steps from other files would hide that some are lost.
    kept = {step: row for step, row in values.items() if step <= min(ends)}
    return Run(name, curve_of(kept), columns, INCOMPLETE, note)


class _DamagedError(Exception):
    """A record whose checksum is wrong, or that is not whole."""


class _Events:
    """Reads event files by the protocol buffers of tensorboard."""

    def __init__(self) -> None:
        self._event, self._hparams, self._arrays, records, message = _modules(
            "tensorboard.compat.proto.event_pb2",
            "tensorboard.plugins.hparams.plugin_data_pb2",
            "tensorboard.util.tensor_util",
            "tensorboard.summary.writer.record_writer",
            "google.protobuf.message",
        )
        self.of_epochs: set[str] = set()  # tags that Keras numbers by epochs
        self.replaced: dict[str, str] = {}  # files whose marks dropped tags
        self._checksum = records.masked_crc32c
        self._decode_error = message.DecodeError

    def folder(self, paths: Sequence[Path]) -> _Folder:
        """Returns what the event files of one folder hold, in their order."""
        found = _Folder()
        for path in paths:
            step = 0
            try:
                for event in self._read(path):
                    self._purge(event, path, found)
                    self._add(event, found)
                    step = event.step
            except _DamagedError:
                found.end = step if found.end is None else min(found.end, step)
                found.notes.append(
                    f"{str(path)!r} is damaged or ends within a record: its run counts "
                    f"as cut off after step {step}."
                )
            except (self._decode_error, UnicodeError) as error:
                raise UserError(f"{str(path)!r} holds no events.") from error
        if found.back:
            found.notes.append(
                f"{str(paths[0].parent)!r} has steps of {min(found.back)!r} that go "
                "back, or stay, without a restart mark: the last value counts."
            )
        return found

    def _purge(self, event: Any, path: Path, found: _Folder) -> None:
        """Drops what a restart replaces: all from its step on."""
        if event.session_log.status != _START:
            return
        late = [step for step in found.values if step >= event.step]
        for step in late:
            self.replaced |= dict.fromkeys(found.values.pop(step), str(path))
        found.last.clear()
        if late:
            found.notes.append(
                f"{str(path)!r} restarts at step {event.step}: {len(late)} earlier "
                "evaluations from there on are left out."
            )

    def _read(self, path: Path) -> Iterator[Any]:
        """Yields the events of a file: length and content, each before its checksum."""
        with foreign_files.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            while head := file.read(8):
                self._check(head, file.read(4))
                [length] = struct.unpack("<Q", head)
                if length > size:
                    raise _DamagedError
                content = file.read(length)
                self._check(content, file.read(4))
                event = self._event.Event()
                event.ParseFromString(content)
                yield event

    def _check(self, data: bytes, checksum: bytes) -> None:
        if checksum != struct.pack("<I", self._checksum(data)):
            raise _DamagedError

    def _add(self, event: Any, found: _Folder) -> None:
        """Adds the scalars of an event by step, and its metaparameters."""
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                session = self._session(value)
                held = found.columns
                found.several += [x for x, v in session.items() if held.get(x, v) != v]
                held |= session
                continue
            number = self._number(value)
            # Keras numbers `_vs_iterations` by updates, and all others by epochs.
            # Megatron numbers `vs samples` by samples, and others by updates; DeepSpeed
            # so numbers `Train/Samples/`.
            if number is not None and not _VERSUS.search(value.tag):
                tag = value.tag.removeprefix("epoch_")
                self.of_epochs |= {value.tag} - {tag}
                row = found.values.setdefault(event.step, {})
                is_other = row.get(tag, number) != number
                if is_other or event.step < found.last.get(tag, event.step):
                    found.back.add(tag)
                found.last[tag] = event.step
                row[tag] = number

    def _number(self, value: Any) -> float | None:
        """Returns a scalar, as TensorFlow 1, 2 and PyTorch write it."""
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            return measured(value.simple_value)
        if kind != "tensor" or value.tensor.tensor_shape.dim:
            return None
        try:
            return measured(self._arrays.make_ndarray(value.tensor))
        except (TypeError, ValueError, IndexError):
            return None

    def _session(self, value: Any) -> dict[str, Any]:
        data = self._hparams.HParamsPluginData()
        data.ParseFromString(value.metadata.plugin_data.content)
        return {
            name: getattr(entry, entry.WhichOneof("kind"))
            for name, entry in data.session_start_info.hparams.items()
            if entry.WhichOneof("kind") not in (None, "null_value")
        }
