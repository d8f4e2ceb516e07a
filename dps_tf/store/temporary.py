"""Names of files that are being written, which tell whether their writer is dead."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import secrets
import time
from pathlib import Path

from dps_tf.store import hosts

_NAME = re.compile(r"\.writing-([0-9a-f]{8})-(\d+)-([0-9a-f]{8})-\d+\.temporary")
_STALE_AFTER = 3600.0  # seconds; writing one file does not take that long
_PROCESS_TOKEN = secrets.token_hex(4)
_SERIAL = itertools.count()


@functools.cache
def _machine_tag() -> str:
    return hashlib.sha256(hosts.machine().encode()).hexdigest()[:8]


def temporary_path(path: str) -> Path:
    """Returns a new name beside a file, to be written first and renamed then."""
    writer = f"{_machine_tag()}-{os.getpid()}-{_PROCESS_TOKEN}-{next(_SERIAL)}"
    return Path(path).parent / f".writing-{writer}.temporary"


def is_temporary(name: str) -> bool:
    """Returns whether `temporary_path` makes such names."""
    return _NAME.fullmatch(name) is not None


def is_stale(place: Path) -> bool:
    """Returns whether nobody will finish a temporary file any more."""
    match = _NAME.fullmatch(place.name)
    if match is None:
        return False
    tag, pid, token = match.groups()
    if tag == _machine_tag():
        if int(pid) == os.getpid():
            # A former life of this process number, which is common in containers.
            return token != _PROCESS_TOKEN
        if hosts.is_surely_dead(int(pid), ""):
            return True
    try:
        return time.time() - place.stat().st_mtime > _STALE_AFTER
    except FileNotFoundError:
        return False
