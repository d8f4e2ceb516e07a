"""The errors of the store; each is one sentence that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dps_tf.core import UserError

_FULL = "free some space and run the command again: it continues from what is saved"
_REFUSED = "make it writable for this user, or choose another directory"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: f"{_FULL}, or raise the limit on the size of files (ulimit -f)",
    errno.EIO: "the disk itself reports an error: check it before running again",
    errno.EACCES: _REFUSED,
    errno.EPERM: _REFUSED,
    errno.EROFS: _REFUSED,
    errno.ENAMETOOLONG: "choose shorter names",
    errno.ENOTDIR: "part of the path is a file: move it away or choose another path",
    errno.EISDIR: "a folder has the name of a file: move it away",
    errno.ELOOP: "a link stands where a file belongs: remove it",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


class StoreError(OSError):
    """The file system refused an operation; the old content of the file is unchanged.

    `path` is the file or folder concerned, `errno` the system's number or None.
    """

    def __init__(self, message: str, path: str, number: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.errno = number

    def __str__(self) -> str:
        return str(self.args[0])


class OtherFormatError(UserError):
    """A file was written in another format, which this version does not read."""


class DamagedError(Exception):
    """A file does not hold what was written to it: torn, empty or changed.

    The file at `path` is still in place; `reason` is a clause.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}.")
        self.path = path
        self.reason = reason


class LockLost(Exception):
    """Another owner has taken over the cell: this one must write nothing more."""


@contextmanager
def explained(doing: str, path: str) -> Iterator[None]:
    """Turns an OSError of the block into a StoreError with path and advice.

    FileNotFoundError and FileExistsError pass through: callers expect them.
    """
    try:
        yield
    except (StoreError, FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        # Libraries raise some of these errors with a text alone.
        reason = error.strerror or str(error).split("\n")[0]
        raise store_error(doing, path, error.errno, reason) from error


def store_error(
    doing: str, path: str, number: int | None, reason: str | None
) -> StoreError:
    """Returns the StoreError with one sentence: what failed, where, why, what to do."""
    advice = _ADVICE.get(number or 0, "correct that and run the command again")
    return StoreError(
        f"Cannot {doing} {path}: {reason or 'unknown error'}; {advice}.", path, number
    )
