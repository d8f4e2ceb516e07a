"""Downloads of published files; one that stalls ends."""

from __future__ import annotations

import http.client
import shutil
import urllib.request
from pathlib import Path

from dps_tf.core import UserError
from dps_tf.data.raw import RawFile


def fetch(file: RawFile, folder: Path, stall_seconds: float = 20.0) -> Path:
    """Downloads `file` into `folder` and returns its path; does not check its content.

    Raises UserError if nothing arrives for `stall_seconds`, or the server refuses.
    """
    path = folder / file.name
    try:
        with (
            urllib.request.urlopen(file.url, timeout=stall_seconds) as response,
            path.open("wb") as target,
        ):
            shutil.copyfileobj(response, target)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"cannot download {file.url} ({error}): check the network, or get the file "
            "elsewhere and give its folder with --raw_dir"
        ) from error
    return path
