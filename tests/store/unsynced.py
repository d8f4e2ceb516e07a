"""For tests that kill processes, and never the machine under them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def nobody_pulls_the_plug() -> Iterator[None]:
    """Does not wait for the disk: what a process has written outlives its kill.

    That the store waits where it must is tested there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
