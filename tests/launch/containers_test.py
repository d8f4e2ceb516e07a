"""Is what containers hold decided beforehand, and do they run with few rights?"""

from __future__ import annotations

import configparser
import re

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.launch.rendered import LAUNCH, SOURCE_TREE

CONTAINERS = LAUNCH / "containers"
LINE = re.compile(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def locked(kind: str) -> dict[str, str]:
    """Returns the version of each package of a lock; every line has a hash."""
    lines = (CONTAINERS / f"{kind}.lock").read_text().splitlines()
    matches = [LINE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert matches and all(matches)
    found = {canonicalize_name(m[1]): m[2] for m in matches if m}
    assert len(found) == len(matches)
    return found


def required(*extras: str) -> list[Requirement]:
    setup = configparser.ConfigParser()
    setup.read(SOURCE_TREE / "setup.cfg")
    texts = [setup["options"]["install_requires"]]
    texts += [setup["options.extras_require"][extra] for extra in extras]
    lines = [line for text in texts for line in text.splitlines()]
    return [Requirement(line) for line in lines if line and line[0] != "#"]


@pytest.mark.parametrize("kind", ["cpu", "gpu", "tpu"])
def test_a_lock_holds_what_the_package_asks_for(kind):
    found = locked(kind)
    extras = {"cpu": ("ray",), "gpu": ("ray", "gpu"), "tpu": ("tpu",)}[kind]
    environment = {**default_environment(), "python_version": "3.11"}
    for wanted in required(*extras):
        name = canonicalize_name(wanted.name)
        if kind == "tpu" and name == "tensorflow":
            continue
        if wanted.marker is None or wanted.marker.evaluate(environment):
            assert wanted.specifier.contains(found[name]), wanted
    # Beside tensorflow-tpu its files would be overwritten.
    assert ("tensorflow" in found) == (kind != "tpu")
    assert "setuptools" in found
    # What the wheels of CUDA are called is the affair of tensorflow.
    assert any(name.startswith("nvidia-cuda") for name in found) == (kind == "gpu")


def test_lower_bounds_have_no_known_holes():
    least = {"jinja2": "3.1.6", "scikit-learn": "1.5"}
    for wanted in required():
        if wanted.name in least:
            assert str(wanted.specifier) == f">={least.pop(wanted.name)}"
    assert not least


def test_containers_are_named_by_digest_and_run_as_nobody():
    lines = (CONTAINERS / "Containerfile").read_text().splitlines()
    stages = [line.split() for line in lines if line.startswith("FROM ")]
    names = {stage[3] for stage in stages}
    for stage in stages:
        assert stage[1] in names or re.search(r"@sha256:[0-9a-f]{64}$", stage[1])
    users = [line for line in lines if line.startswith("USER ")]
    assert users == ["USER 10001:10001"] * 3
    assert not [line for line in lines if "install" in line and line.endswith("pip")]
    installs = [line for line in lines if line.startswith("RUN launch")]
    assert [line.split()[2:] for line in installs] == [
        ["--locked", "cpu"],
        ["--locked", "gpu"],
        ["--locked", "tpu"],
    ]


def test_nothing_asks_for_all_rights_or_evaluates_text():
    for path in LAUNCH.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            text = path.read_text()
            assert "--privileged" not in text and "privileged: true" not in text, path
            assert not re.search(r"^\s*eval\s", text, re.M), path
