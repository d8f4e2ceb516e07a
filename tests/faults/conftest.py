from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.victim import STUDY, TRIALS, Victim, victim
from tests.store.unsynced import nobody_pulls_the_plug  # noqa: F401 - every test here


@pytest.fixture(scope="session")
def children() -> Iterator[Victim]:
    """The forking process: one for all modules, as it takes seconds to start."""
    with victim() as found:
        yield found


@pytest.fixture(scope="session")
def undisturbed() -> dict[str, bytes]:
    """Returns the result tables of the victim's study, run without interruption."""
    from tests.made_up import studies

    return studies.undisturbed(STUDY, TRIALS)
