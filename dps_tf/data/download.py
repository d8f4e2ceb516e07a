"""Downloads of published files, in bounded time."""

from __future__ import annotations

import http.client
import time
import urllib.request
from pathlib import Path

from dps_tf.core import UserError
from dps_tf.data.raw import RawFile


def fetch(
    file: RawFile,
    folder: Path,
    stall_seconds: float = 20.0,
    total_seconds: float = 1_800.0,
) -> Path:
    """Downloads `file` into `folder` and returns its path; does not check its content.

    Raises UserError if nothing arrives for `stall_seconds`, if the download takes more
    than `total_seconds` (the default is 170 MB, the largest file, at 100 kB/s), or if
    the server refuses.
    """
    path = folder / file.name
    deadline = time.monotonic() + total_seconds
    try:
        with (
            urllib.request.urlopen(file.url, timeout=stall_seconds) as response,
            path.open("wb") as target,
        ):
            # read1 returns what has arrived: the deadline is checked on slow lines too.
            while chunk := response.read1(1 << 18):
                target.write(chunk)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not complete after {total_seconds:.0f} s")
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"cannot download {file.url} ({error}): check the network, or get the file "
            "elsewhere and give its folder with --raw_dir"
        ) from error
    return path
