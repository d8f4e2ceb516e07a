"""Programs that a test puts in the place of gcloud, docker and their like.

They write down how they are called, and answer as they are told to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_CODE = """#!{python} -SE
import json, os, re, sys
folder = {folder!r}
call = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
with open(folder + "/calls", "a") as file:
    file.write(json.dumps(call) + "\\n")
with open(folder + "/calls") as file:
    calls = [" ".join(json.loads(line)) for line in file]
with open(folder + "/answers") as file:
    answers = json.load(file)
for number, answer in enumerate(answers):
    if not re.search(answer["to"], " ".join(call)):
        continue
    if answer["until"] and any(re.search(answer["until"], c) for c in calls):
        continue
    if answer["once"]:
        del answers[number]
        with open(folder + "/answers", "w") as file:
            json.dump(answers, file)
    sys.stdout.write(answer["out"])
    sys.stdout.flush()
    if answer["runs_command"]:
        (command,) = [a[10:] for a in call if a.startswith("--command=")]
        os.execvp("bash", ["bash", "-c", command])
    sys.exit(answer["code"])
"""


def ran(
    command: Sequence[object], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder to its end, within a minute."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class StandIns:
    """A folder of programs that come first on the PATH.

    Args:
        folder: a new one.
        names: of the programs; `sudo` runs what follows it.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self._answers: list[dict[str, object]] = []
        (folder / "bin").mkdir(parents=True)
        for name in names:
            code = _CODE.format(python=sys.executable, folder=str(folder))
            if name == "sudo":
                code = '#!/bin/bash\nexec "$@"\n'
            program = folder / "bin" / name
            program.write_text(code)
            program.chmod(0o755)

    def answer(
        self,
        to: str,
        out: str = "",
        code: int = 0,
        *,
        once: bool = False,
        until: str = "",
        runs_command: bool = False,
    ) -> None:
        """Says what a call does: the first answer counts whose pattern is found in it.

        Args:
            to: the pattern; calls that none fits print nothing and succeed.
            out: what it prints.
            code: its exit code.
            once: for one call only.
            until: a pattern; for calls before one that it is found in. A script may
                go on before a program that it started has come so far as to be called.
            runs_command: then its --command=... is run by bash.
        """
        given = {"to": to, "out": out, "code": code, "once": once}
        self._answers.append({**given, "until": until, "runs_command": runs_command})

    def run(
        self, *command: object, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script to its end."""
        (self.folder / "answers").write_text(json.dumps(self._answers))
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, **variables}
        return ran(command, self.folder, environment)

    def calls(self, start: str = "") -> list[list[str]]:
        """Returns the calls in order, those that begin with the words of `start`."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        words = start.split()
        found = [json.loads(line) for line in lines]
        return [call for call in found if call[: len(words)] == words]
