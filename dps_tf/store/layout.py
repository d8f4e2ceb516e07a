"""The names of all files of a sweep directory, and where in it they lie."""

from __future__ import annotations

from pathlib import Path

from dps_tf.core import UserError, checked_name

MARKER = ".dps_tf"
"""Name of the file that marks a folder as one that the package may delete."""

CLOSING_TABLES = ("trials", "curves", "work")
"""The tables that a closed study consists of."""

_NAME_LIMIT, _PATH_LIMIT = 255, 4095  # bytes, on Linux; elsewhere less may be allowed
_SHOWN = 60  # characters of a path that is too long


def is_name(name: str) -> bool:
    """Returns whether a name can be part of a path, by `checked_name`."""
    try:
        checked_name("name", name)
    except UserError:
        return False
    return True


def absolute(path: str) -> str:
    """Returns a path that does not depend on the current directory.

    Paths with a scheme, such as `gs://bucket/folder`, lose only trailing slashes.

    Raises:
        UserError: the path is empty, not UTF-8, or longer than systems allow.
    """
    if not path:
        raise UserError("The directory is empty: name one, for example sweeps/mnist.")
    try:
        names = [len(name) for name in path.encode().split(b"/")]
    except UnicodeEncodeError as error:
        raise UserError(
            f"the path {path!r} is not UTF-8: rename its folders, or choose others."
        ) from error
    if max(names) > _NAME_LIMIT or len(path.encode()) > _PATH_LIMIT:
        raise UserError(
            f"the path {path[:_SHOWN]}... is too long: a path may have {_PATH_LIMIT} "
            f"bytes and each name in it {_NAME_LIMIT}, so choose shorter names."
        )
    if "://" in path:
        return path.rstrip("/")
    return str(Path(path).expanduser().absolute())


class SweepLayout:
    """Paths of a sweep.

    Attributes:
        root: the sweep directory, absolute.
        marker: JSON record that marks the directory as the package's own.
        sweep: JSON record of what the sweep is.
        config: the resolved gin configuration, text.
        cells: folder of one folder per cell.
        scores: folder of scores for pruning, shared by all cells.
    """

    def __init__(self, root: str) -> None:
        """Takes the directory as the user has named it."""
        self.root = absolute(root)
        self.marker = f"{self.root}/{MARKER}"
        self.sweep = f"{self.root}/sweep.json"
        self.config = f"{self.root}/config.gin"
        self.cells = f"{self.root}/cells"
        self.scores = f"{self.root}/scores"

    @property
    def repeats(self) -> SweepLayout:
        """A sweep inside the sweep: the best points of cells under other seeds."""
        return SweepLayout(f"{self.root}/repeats")

    def cell(self, name: str) -> CellLayout:
        """Returns the paths of one cell; UserError if the name cannot be a folder."""
        return CellLayout(f"{self.cells}/{checked_name('cell', name)}")


class CellLayout:
    """Paths of a cell and its study.

    Attributes:
        root: the folder of the cell.
        study: JSON record: the frozen specification, or where imported runs are from.
        logs: folder of the checked logs, one per writer.
        states: folder of the states of unfinished trials.
        keras_tuner: keras-tuner's own folder, which may be deleted.
        lock: file under flock while the cell has an owner on this machine.
        claims: folder of owners and heartbeats, across machines.
        measurements: Parquet: smoothness and noise scale.
        closed: JSON record, written last of all: the study is closed.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.study = f"{root}/study.json"
        self.logs = f"{root}/log"
        self.states = f"{root}/states"
        self.keras_tuner = f"{root}/keras_tuner"
        self.lock = f"{root}/lock"
        self.claims = f"{root}/claims"
        self.measurements = f"{root}/measurements.parquet"
        self.closed = f"{root}/closed.json"

    def log(self, writer: str) -> str:
        """Returns the log of one writer."""
        return f"{self.logs}/{checked_name('writer', writer)}.log"

    def table(self, name: str) -> str:
        """Returns the Parquet file of one of CLOSING_TABLES, or of another table."""
        return f"{self.root}/{checked_name('table', name)}.parquet"


def segments(log: str) -> str:
    """Returns the folder of a log's segments, on file systems without append."""
    return f"{log}.segments"


def set_aside_path(path: str, number: int) -> str:
    """Returns the new name of a damaged file that is set aside."""
    return f"{path}.damaged-{number}"
