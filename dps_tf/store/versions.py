"""Which versions of the package and its libraries made a record."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "dps_tf",
    "tensorflow",
    "tf-keras",
    "keras-tuner",
    "tensorflow-model-optimization",
    "tensorflow-datasets",
    "gin-config",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
)


@functools.cache
def package_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
