"""Which gin files does the package bring along, and where is the one the user named?

Shipped files are named by their path below the folder `gin_configs`, without the
suffix: `lee2021/mnist_sgd`. The names are the same in the source tree and in a wheel.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from dps_tf.core.errors import UserError, near_matches

_SUFFIX = ".gin"


def folder() -> Path:
    """Returns the folder of the shipped gin files, also where `include` may look."""
    # An installed package is always a folder here: TensorFlow does not run from a zip.
    return Path(str(importlib.resources.files("dps_tf") / "gin_configs"))


def shipped() -> list[str]:
    """Returns the names of the shipped configurations, sorted."""
    root = folder()
    paths = (path.relative_to(root) for path in root.rglob(f"*{_SUFFIX}"))
    return sorted(path.with_suffix("").as_posix() for path in paths)


def resolve(name_or_path: str) -> Path:
    """Returns the absolute path of a shipped name, or of a gin file of the user's own.

    A shipped name wins over a file of the same name in the current directory, so that
    a name means the same wherever a command is run; `./name` is always a path.

    Raises:
        UserError: neither a shipped name nor a file.
    """
    names = shipped()
    if name_or_path in names:
        return folder() / f"{name_or_path}{_SUFFIX}"
    path = Path(name_or_path)
    if path.is_file():
        return path.absolute()
    if path.is_dir():
        raise UserError(
            f"gin file {name_or_path!r} is a folder; name one of the files in it"
        )
    bare = name_or_path.removesuffix(_SUFFIX)
    if bare in names:
        return folder() / f"{bare}{_SUFFIX}"
    raise UserError(
        f"gin file {name_or_path!r} is neither a file nor a shipped name; "
        f"{near_matches(bare, names)}"
    )
