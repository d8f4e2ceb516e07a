"""Every file name of the package: where in a sweep directory each thing lies.

<sweep>/.dps_tf                     marker: the package may delete below this
<sweep>/sweep.json                  what the sweep is
<sweep>/config.gin                  the resolved gin configuration
<sweep>/scores/                     scores for pruning, shared by all cells
<sweep>/repeats/                    best points under other seeds, as a sweep of its own
<sweep>/cells/<cell>/study.json     the frozen specification and its fingerprint
<sweep>/cells/<cell>/log/           checked logs, one per writer
<sweep>/cells/<cell>/states/        states of unfinished trials
<sweep>/cells/<cell>/keras_tuner/   keras-tuner's own files; disposable
<sweep>/cells/<cell>/lock           flock of the owner on this machine
<sweep>/cells/<cell>/claims/        owners and heartbeats, across machines
<sweep>/cells/<cell>/measurements.parquet
<sweep>/cells/<cell>/trials.parquet, curves.parquet, work.parquet   on closing
<sweep>/cells/<cell>/closed.json    last of all: the study is closed
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dps_tf.core.cell import checked_name
from dps_tf.core.errors import UserError

MARKER = ".dps_tf"
"""The file that tells a folder is the package's own and may be deleted by it."""

CLOSING_TABLES = ("trials", "curves", "work")
"""The tables that a closed study consists of."""


def is_name(name: str) -> bool:
    """Returns whether a name can be part of a path; see `check_name`."""
    try:
        check_name(name)
    except UserError:
        return False
    return True


def check_name(name: str) -> str:
    """Returns a name that can be part of a path: ^[A-Za-z0-9._-]+$, not '.' or '..'.

    Raises:
        UserError: for any other name.
    """
    return checked_name("name", name)


def absolute(path: str) -> str:
    """Returns a path that does not change its meaning with the current directory.

    Paths with a scheme, such as `gs://bucket/folder`, lose only trailing slashes.
    """
    if not path:
        raise UserError("The directory is empty: name one, for example sweeps/mnist.")
    if "://" in path:
        return path.rstrip("/")
    return str(Path(path).expanduser().absolute())


@dataclass(frozen=True)
class SweepLayout:
    """Paths of a sweep.

    Attributes:
        root: the sweep directory, as given by the user or absolute.
    """

    root: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", absolute(self.root))

    @property
    def marker(self) -> str:
        """JSON; makes the directory the package's own."""
        return f"{self.root}/{MARKER}"

    @property
    def sweep(self) -> str:
        """JSON record of what the sweep is."""
        return f"{self.root}/sweep.json"

    @property
    def config(self) -> str:
        """The resolved gin configuration, text."""
        return f"{self.root}/config.gin"

    @property
    def cells(self) -> str:
        """Folder of one folder per cell."""
        return f"{self.root}/cells"

    @property
    def scores(self) -> str:
        """Folder of the score cache."""
        return f"{self.root}/scores"

    @property
    def repeats(self) -> SweepLayout:
        """A sweep inside the sweep: the best points of cells under other seeds."""
        return SweepLayout(f"{self.root}/repeats")

    def cell(self, name: str) -> CellLayout:
        """Returns the paths of one cell; UserError if the name cannot be a folder."""
        return CellLayout(f"{self.cells}/{check_name(name)}")


@dataclass(frozen=True)
class CellLayout:
    """Paths of a cell and its study.

    Attributes:
        root: the folder of the cell.
    """

    root: str

    @property
    def study(self) -> str:
        """JSON record: the frozen specification and its fingerprint."""
        return f"{self.root}/study.json"

    @property
    def logs(self) -> str:
        """Folder of the checked logs."""
        return f"{self.root}/log"

    def log(self, writer: str) -> str:
        """The log of one writer."""
        return f"{self.logs}/{check_name(writer)}.log"

    @property
    def states(self) -> str:
        """Folder of the states of trials."""
        return f"{self.root}/states"

    @property
    def keras_tuner(self) -> str:
        """keras-tuner's own folder."""
        return f"{self.root}/keras_tuner"

    @property
    def lock(self) -> str:
        """File under flock while the cell has an owner on this machine."""
        return f"{self.root}/lock"

    @property
    def claims(self) -> str:
        """Folder of claims and heartbeats."""
        return f"{self.root}/claims"

    @property
    def measurements(self) -> str:
        """Parquet: smoothness and noise scale."""
        return f"{self.root}/measurements.parquet"

    def table(self, name: str) -> str:
        """Parquet: one of CLOSING_TABLES, written when the study closes."""
        return f"{self.root}/{check_name(name)}.parquet"

    @property
    def closed(self) -> str:
        """JSON record whose presence closes the study."""
        return f"{self.root}/closed.json"


def segments(log: str) -> str:
    """Returns the folder of a log's segments, on file systems without append."""
    return f"{log}.segments"


def set_aside_path(path: str, number: int) -> str:
    """Returns the name under which a damaged file is kept."""
    return f"{path}.damaged-{number}"
