"""Does the wheel hold what a user needs, and nothing else?"""

from __future__ import annotations

import configparser
import email
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import dps_tf
from dps_tf.workloads import reading as configurations
from tests.packaging.source_tree import SOURCE_TREE, command_names

# A release of one of these has broken its callers before.
FRAGILE = (
    "gin-config",
    "keras-tuner",
    "tensorflow",
    "tensorflow-model-optimization",
    "tf-keras",
)


def build(kind: str, folder: Path) -> Path:
    """Builds from a copy of the tree, without network."""
    source = folder / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md"):
        if (SOURCE_TREE / name).exists():
            shutil.copy(SOURCE_TREE / name, source)
    for name in ("dps_tf", "docs", "gin_configs", "launch", "tests", ".ci"):
        shutil.copytree(SOURCE_TREE / name, source / name, symlinks=True)
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}"]
    result = subprocess.run(
        [*command, "--outdir", folder, source],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (product,) = folder.glob("dps_tf-*")
    return product


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    given = os.environ.get("DPS_TF_WHEEL")
    return Path(given) if given else build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def sdist_names(tmp_path_factory):
    given = os.environ.get("DPS_TF_SDIST")
    sdist = Path(given) if given else build("sdist", tmp_path_factory.mktemp("sdist"))
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def tree_files(folder: str, pattern: str) -> set[str]:
    """Returns the files of a folder of the tree that match, relative to the tree."""
    found = (SOURCE_TREE / folder).rglob(pattern)
    return {path.relative_to(SOURCE_TREE).as_posix() for path in found}


def test_wheel_holds_every_module(wheel_names):
    assert tree_files("dps_tf", "*.py") <= wheel_names
    assert "dps_tf/py.typed" in wheel_names


def test_wheel_holds_every_gin_file(wheel_names):
    files = tree_files("gin_configs", "*.gin") | tree_files("gin_configs", "*.md")
    assert "gin_configs/quickstart.gin" in files
    assert {f"dps_tf/{name}" for name in files} <= wheel_names


def test_wheel_holds_the_published_curves_and_the_templates(wheel_names):
    curves = tree_files("gin_configs", "published*.csv")
    assert curves
    assert {f"dps_tf/{name}" for name in curves} <= wheel_names
    # Scripts are run in the source tree.
    assert not [n for n in wheel_names if "gin_configs" in n and n.endswith(".py")]
    templates = {
        name
        for name in tree_files("dps_tf/analysis/templates", "*")
        if (SOURCE_TREE / name).is_file()
    }
    assert templates
    assert templates <= wheel_names


def test_wheel_installs_one_package_and_no_tests(wheel_names):
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"dps_tf"}
    assert not [name for name in wheel_names if "test" in Path(name).name]


def test_sdist_holds_what_the_checks_need(sdist_names):
    expected = {"setup.cfg", "pyproject.toml", "LICENSE", "launch/test", ".ci/run"}
    assert expected <= sdist_names
    assert tree_files("tests", "*.py") <= sdist_names
    assert tree_files("docs", "*.md") <= sdist_names
    assert tree_files("gin_configs", "*.gin") <= sdist_names
    assert not [name for name in sdist_names if "__pycache__" in name]


def test_metadata_name_licence_and_python(metadata):
    assert metadata["Name"] == "dps_tf"
    assert metadata["Version"] == dps_tf.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.14"}
    assert set(metadata.get_all("Provides-Extra")) == {
        "cloud",
        "dev",
        "docs",
        "gpu",
        "ray",
        "tensorboard",
        "text",
        "tpu",
    }


def requirements(metadata: email.message.Message) -> dict[str, Requirement]:
    """Returns what every installation asks for, by name."""
    parsed = map(Requirement, metadata.get_all("Requires-Dist"))
    return {found.name: found for found in parsed if found.marker is None}


@pytest.mark.parametrize("name", FRAGILE)
def test_fragile_requirement_has_an_upper_bound_and_is_met_here(metadata, name):
    requirement = requirements(metadata)[name]
    installed = importlib.metadata.version(name)
    print(f"{name} {installed}, required {requirement.specifier}")
    assert any(bound.operator == "<" for bound in requirement.specifier)
    assert Version(installed) in requirement.specifier


def test_requirements_of_the_data_sets_are_named(metadata):
    # scikit-learn brings the embedded digits; TensorFlow Datasets imports the second
    # without asking for it.
    assert {"scikit-learn", "importlib_resources"} <= set(requirements(metadata))


def test_tpu_extra_pins_the_verified_releases(metadata):
    pins = [
        line for line in metadata.get_all("Requires-Dist") if 'extra == "tpu"' in line
    ]
    assert sorted(line.partition(";")[0].strip() for line in pins) == [
        "libtpu==0.0.21.1",
        "tensorflow-tpu==2.20.0",
        "tf-keras==2.20.1",
    ]


def test_console_scripts_are_the_commands(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
        parser = configparser.ConfigParser()
        parser.read_string(archive.read(name).decode())
    assert dict(parser["console_scripts"]) == {
        f"dps-{name.replace('_', '-')}": f"dps_tf.{name}:main"
        for name in command_names()
    }


def test_every_command_of_the_documents_is_there():
    named = {"train", "report", "status", "prepare", "fit", "export", "import_runs"}
    assert named <= set(command_names())


@pytest.mark.skipif(
    not os.environ.get("DPS_TF_WHEEL"), reason="not a run against an installed wheel"
)
def test_what_is_tested_is_the_installed_package_and_not_the_tree():
    # The virtual environment may lie in the tree; the package in it is another one.
    assert Path(dps_tf.__file__).resolve().parent != (SOURCE_TREE / "dps_tf").resolve()
    assert configurations.folder().resolve() != (SOURCE_TREE / "gin_configs").resolve()
    assert configurations.folder().parent == Path(dps_tf.__file__).parent


def test_tree_has_the_gin_files_beside_the_code():
    link = SOURCE_TREE / "dps_tf" / "gin_configs"
    assert link.resolve() == SOURCE_TREE.resolve() / "gin_configs"
