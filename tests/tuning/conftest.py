from __future__ import annotations

from tests.store.unsynced import nobody_pulls_the_plug  # noqa: F401 - every test here
