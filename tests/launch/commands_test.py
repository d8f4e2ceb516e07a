"""Does the real command understand every command line that a launcher gives it?

The launchers run, with stand-ins for what they start; what these are given goes to
`dps_tf.train --dry_run`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch import rendered
from tests.launch.dry_runs import dry_run
from tests.launch.gcloud_test import QUEUED, VARIABLES
from tests.launch.rendered import LAUNCH
from tests.launch.stand_ins import StandIns

README = LAUNCH / "README.md"


def after(call: list[str], word: str) -> list[str]:
    """Returns what follows a word of a call."""
    return call[call.index(word) + 1 :]


def of_slurm(options: list[str], folder: Path) -> list[str]:
    programs = StandIns(folder, ["python", "squeue", "scontrol"])
    sbatch = LAUNCH / "slurm" / "sweep.sbatch"
    variables = {"DPS_TF_VENV": str(folder), "SLURM_JOB_ID": "7"}
    done = programs.run("bash", sbatch, *options, **variables)
    assert done.returncode == 0, done.stderr
    (call,) = programs.calls("python -m")
    return after(call, "dps_tf.train")


def of_container(call: list[str]) -> list[str]:
    """Returns the options behind the image of `docker run`."""
    start = next(n for n, word in enumerate(call) if n > 1 and "dps_tf:" in word)
    return call[start + 1 :]


def of_queued_resource(options: list[str], folder: Path) -> list[str]:
    cloud = StandIns(folder, ["gcloud", "docker", "sudo", "sleep"])
    cloud.answer("describe", "ACTIVE\n")
    cloud.answer("ssh", runs_command=True)
    cloud.run(QUEUED, *options, **VARIABLES)
    (call,) = cloud.calls("docker run")
    return of_container(call)


def of_render(words: list[str], folder: Path) -> list[str]:
    del folder
    template, *settings = words[: words.index("|")]
    return rendered.command_of(rendered.document_of(template, settings))


# What README.md shows, by what the line starts with.
LAUNCHERS: dict[str, Callable[[list[str], Path], list[str]]] = {
    "python -m dps_tf.train": lambda words, folder: words,
    "sbatch": lambda words, folder: of_slurm(
        after(words, "launch/slurm/sweep.sbatch"), folder
    ),
    "docker run": lambda words, folder: of_container(["docker", "run", *words]),
    "launch/render": of_render,
    "launch/tpu/queued_resource": of_queued_resource,
}
# The benchmark has a test of its own, beside it.
WITHOUT_TRAINING = ("docker build", "export", "mkdir", "python -m tests.benchmarks")


def shown_lines() -> list[str]:
    """Returns the commands of README.md."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    return [
        line for block in blocks for line in block.replace("\\\n", " ").splitlines()
    ]


def command_of_line(line: str, folder: Path) -> list[str] | None:
    """Returns the options of dps_tf.train that come of a line; None if none do."""
    words = shlex.split(line)
    if line.startswith(WITHOUT_TRAINING):
        return None
    (name,) = [name for name in LAUNCHERS if line.startswith(f"{name} ")]
    folder.mkdir()
    return LAUNCHERS[name](words[len(name.split()) :], folder)


def test_readme_shows_every_launcher():
    text = "\n".join(shown_lines())
    assert [name for name in LAUNCHERS if f"{name} " not in text] == []


@pytest.mark.slow
def test_every_command_line_is_understood_by_the_real_command(tmp_path):
    commands = {
        line: command_of_line(line, tmp_path / str(number))
        for number, line in enumerate(shown_lines())
    }
    for case in rendered.CASES:
        commands[case] = rendered.command_of(rendered.document(case))
    odd = ["--gin_file=quickstart", "--sweep_dir=gs://b/a sweep"]
    odd += ["--gin_bindings=workload.points = 8", "--slots=2"]
    for launcher in (of_slurm, of_queued_resource):
        folder = tmp_path / launcher.__name__
        folder.mkdir()
        commands[launcher.__name__] = launcher(odd, folder)
    given = {name: command for name, command in commands.items() if command is not None}
    assert len(given) >= 14
    (tmp_path / "elsewhere").mkdir()
    answers = dry_run(list(given.values()), tmp_path / "elsewhere")
    for (name, command), (code, said) in zip(given.items(), answers, strict=True):
        assert code == 0, f"{name}\n{command}\n{said}"
        assert "trials: " in said
