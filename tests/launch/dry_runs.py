"""Hands command lines of launchers to the real command, with --dry_run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.commands import one_process

_OPENS_NO_DATA = """
from dps_tf.cli.sweep_run import SweepRun
SweepRun.try_out = lambda self: str(self.configuration)
"""


def dry_run(
    commands: Sequence[Sequence[str]], folder: Path, *, opens_data: bool = False
) -> list[tuple[int, str]]:
    """Returns the exit code of each command line, and what it prints.

    Args:
        commands: what follows the name of the command, for each.
        folder: from where they are run; holds nothing of the project.
        opens_data: whether data are opened and networks built, as for a user; command
            lines of documents are about data and machines that are not here.
    """
    lines = [[*command, "--dry_run"] for command in commands]
    before = {} if opens_data else {0: _OPENS_NO_DATA}
    done = one_process.run("train", lines, folder, before)
    return [(each.code, each.out + each.err) for each in done]
