"""Runs command lines of one command, one after the other in one process.

TensorFlow takes seconds to import; whatever else a command does is as for a user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dps_tf

_SCRIPT = """
import contextlib, importlib, io, json, sys
from absl import flags
from dps_tf.cli import command_line

module = importlib.import_module("dps_tf." + sys.argv[1])
commands, before = json.load(sys.stdin)
for place, command in enumerate(commands):
    exec(before.get(str(place), ""))
    out, err = io.StringIO(), io.StringIO()
    for name in list(flags.FLAGS):
        flags.FLAGS[name].unparse()
    flags.FLAGS.unparse_flags()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            rest = command_line._parse_flags(["dps_tf", *command])
            code = command_line._guarded(module.main, rest)
        except SystemExit as end:
            code = end.code
    print("\\n" + json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@dataclass(frozen=True)
class Done:
    """How a command line ended: its exit code and what it has printed."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line of what the user can correct."""
        (line,) = self.err.splitlines()
        assert line.startswith("error: ")
        return line


def run(
    command: str,
    lines: Sequence[Sequence[str]],
    folder: Path,
    before: Mapping[int, str] | None = None,
) -> list[Done]:
    """Returns how each command line ended.

    Args:
        command: its name, such as `prepare`.
        lines: what follows it, for each.
        folder: from where they are run.
        before: Python to be executed before a line of a number.
    """
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, command],
        input=json.dumps([[list(line) for line in lines], dict(before or {})]),
        env={
            **os.environ,
            "PYTHONPATH": str(Path(dps_tf.__file__).parents[1]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("[")]
    assert len(answers) == len(lines)
    return [Done(*answer) for answer in answers]
