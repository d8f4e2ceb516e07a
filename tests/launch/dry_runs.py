"""Hands command lines of launchers to the real command, with --dry_run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests import interpreter

# One process for all: each would read its modules of gin files anew.
_SCRIPT = """
import contextlib, io, json, sys
from absl import flags
from dps_tf import train
from dps_tf.cli import command_line
from dps_tf.cli.sweep_run import SweepRun

if not OPENS_DATA:
    SweepRun.try_out = lambda self: str(self.configuration)
parse = command_line.parser_of(train.main)
for command in json.load(sys.stdin):
    said = io.StringIO()
    flags.FLAGS.unparse_flags()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            rest = parse(["dps-train", *command, "--dry_run"])
            code = command_line.guarded(train.main.__wrapped__, rest)
        except SystemExit as end:
            code = end.code
    print("\\n" + json.dumps([code, said.getvalue()[-2000:]]))
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
    done = interpreter.run(
        ["-c", f"OPENS_DATA = {opens_data}\n{_SCRIPT}"],
        input=json.dumps([list(command) for command in commands]),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")
    ]
    assert len(answers) == len(commands)
    return [(code, said) for code, said in answers]
