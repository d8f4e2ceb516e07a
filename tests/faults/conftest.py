from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.victim import Victim, victim
from tests.store.unsynced import nobody_pulls_the_plug  # noqa: F401 - every test here


@pytest.fixture(scope="session")
def children() -> Iterator[Victim]:
    """The forking process: one for all modules, as it takes seconds to start."""
    with victim() as found:
        yield found
