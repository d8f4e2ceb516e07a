"""Fetches a published file, in bounded time, or says why not."""

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
    """Returns the path of `file`, downloaded into `folder` and not yet checked.

    Raises UserError when nothing arrives for `stall_seconds`, or after `total_seconds`
    (the largest file, 170 MB, at 100 kB/s) altogether, or when the server refuses.
    """
    path = folder / file.name
    deadline = time.monotonic() + total_seconds
    try:
        with (
            urllib.request.urlopen(file.url, timeout=stall_seconds) as response,
            path.open("wb") as target,
        ):
            # read1 returns what has arrived, so that a trickle meets the deadline too.
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
