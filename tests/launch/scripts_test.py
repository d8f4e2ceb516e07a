"""Can every script be run, and does the container hold what setup.cfg asks for?"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.launch.rendered import LAUNCH
from tests.launch.stand_ins import StandIns
from tests.packaging.source_tree import SOURCE_TREE

SCRIPTS = [
    LAUNCH / name
    for name in ("containers/install", "slurm/sweep.sbatch", "tpu/queued_resource")
]
CONTAINERFILE = LAUNCH / "containers" / "Containerfile"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_can_be_run_and_parsed(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["/bin/bash", "-n", script], check=True)
    # Where Debian's shellcheck is installed; it is not needed.
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-x", "-P", LAUNCH, script], check=True)


def test_renderer_can_be_run():
    assert os.access(LAUNCH / "render", os.X_OK)


def stages() -> dict[str, list[str]]:
    """Returns the instructions of each stage of the container file."""
    text = CONTAINERFILE.read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("FROM"):
            name = line.split(" AS ")[1]
            found[name] = []
        if line and not line.startswith("#"):
            found[name].append(line)
    return found


def test_container_file_has_a_stage_for_each_kind_of_machine():
    found = stages()
    assert list(found) == ["base", "cpu", "gpu", "tpu"]
    for kind in ("cpu", "gpu", "tpu"):
        lines = [line for line in found[kind] if not line.startswith("#")]
        assert lines[:2] == [
            f"FROM base AS {kind}",
            f"RUN launch/containers/install --locked {kind}",
        ]
    # A public image, and signals reach training from the first moment.
    assert found["base"][0].startswith("FROM docker.io/library/python:3.")
    assert 'ENTRYPOINT ["tini", "--", "dps-train"]' in found["base"]


def test_container_file_copies_what_is_there():
    copied = [
        source
        for line in stages()["base"]
        if line.startswith("COPY")
        for source in line.split()[1:-1]
    ]
    assert {"dps_tf", "gin_configs", "setup.cfg", "README.md"} <= set(copied)
    assert [source for source in copied if not (SOURCE_TREE / source).exists()] == []


@pytest.fixture
def pip(tmp_path) -> StandIns:
    """An interpreter that runs scripts and writes down what pip is to install."""
    pip = StandIns(tmp_path, ["pip-python"])
    program = tmp_path / "bin" / "python"
    program.write_text(
        f'#!/bin/bash\n[ "$1" = - ] && exec {sys.executable} "$@"\n'
        f'exec {tmp_path}/bin/pip-python "$@"\n'
    )
    program.chmod(0o755)
    return pip


def installed(pip: StandIns, kind: str) -> list[list[str]]:
    """Returns the arguments of each `pip install`, without those of all of them."""
    result = pip.run(
        LAUNCH / "containers" / "install", kind, pip.folder / "bin" / "python"
    )
    assert result.returncode == 0, result.stderr
    always = ["--no-cache-dir", "--progress-bar", "off"]
    calls = pip.calls("pip-python -m pip install")
    assert all(call[4:7] == always for call in calls)
    return [call[7:] for call in calls]


def test_cpu_and_gpu_are_the_package_and_its_extra(pip):
    assert installed(pip, "cpu") == [[".[cloud,ray]"]]
    assert installed(pip, "gpu")[1:] == [[".[cloud,gpu,ray]"]]


def test_tpu_has_the_verified_pins_and_no_other_tensorflow(pip):
    accelerator, bare, others, package = installed(pip, "tpu")
    assert accelerator == ["tensorflow-tpu==2.20.0", "libtpu==0.0.21.1"]
    # These ask for tensorflow, whose files would replace those of tensorflow-tpu.
    assert bare[:2] == ["--no-deps", "tf-keras==2.20.1"]
    assert bare[2].startswith("tensorflow-model-optimization")
    assert package == ["--no-deps", "."]
    names = {re.split(r"[<>=]", line)[0] for line in others}
    assert not {"tensorflow", "tf-keras", "tensorflow-model-optimization"} & names
    setup = configparser.ConfigParser()
    setup.read(SOURCE_TREE / "setup.cfg")
    needed = {
        re.split(r"[<>=]", line)[0]
        for line in setup["options"]["install_requires"].splitlines()
        if line and not line.startswith("#")
    }
    left_out = {"tensorflow", "tf-keras", "tensorflow-model-optimization"}
    assert names == needed - left_out | {"dm-tree", "obstore", "six"}


def test_an_unknown_kind_of_machine_is_told(pip):
    result = pip.run(LAUNCH / "containers" / "install", "xpu")
    assert result.returncode == 2 and "cpu, gpu or tpu" in result.stderr


def test_every_launcher_is_rendered_or_run_by_a_test():
    texts = "".join(
        file.read_text(encoding="utf-8")
        for folder in ("launch", "packaging", "distribution", "contracts")
        for file in (LAUNCH.parent / "tests" / folder).glob("*.py")
    )
    launchers = [
        file.name
        for file in LAUNCH.rglob("*")
        if file.is_file() and file.suffix not in (".md", ".lock", ".pyc")
    ]
    assert len(launchers) > 10
    assert not [
        name for name in launchers if f"{name.removesuffix('.sh')}" not in texts
    ]
