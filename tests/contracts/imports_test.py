"""What may import what, and what no module may do at all.

import-linter and ruff see the statements; the subprocesses here see what really gets
loaded.
"""

from __future__ import annotations

import ast
import configparser
import functools
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dps_tf
from tests import interpreter
from tests.packaging.source_tree import SOURCE_TREE, command_names

PACKAGE = Path(dps_tf.__file__).parent
MODULES = sorted(
    module.name for module in pkgutil.walk_packages([str(PACKAGE)], prefix="dps_tf.")
)
COMMANDS = [f"dps_tf.{name}" for name in command_names()]
PURE = [name for name in MODULES if name.split(".")[1] in {"core", "store", "analysis"}]
FILES = sorted(PACKAGE.rglob("*.py"))

# A test on modules that runs over none of them passes, whatever they do.
assert PURE, f"no module found in {PACKAGE}"

HEAVY = (
    "gin keras keras_tuner tensorflow tensorflow_datasets "
    "tensorflow_model_optimization tf_keras"
)

# Imports the modules given as arguments in a process that has no network.
IMPORT_OFFLINE = """
import importlib, sys

def refuse_network(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise RuntimeError(f"{event} while importing: {arguments}")

sys.addaudithook(refuse_network)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""

# Also reports which of the heavy modules were loaded on the way.
IMPORT_PURE = f"""
{IMPORT_OFFLINE}
    loaded = sorted(set("{HEAVY}".split()) & set(sys.modules))
    assert not loaded, f"importing {{name}} loads {{loaded}}"
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that finds the same dps_tf as this one."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        timeout=120,
        check=False,
    )


def imports(text: str) -> list[tuple[str, str]]:
    """Returns the (module, name) of each name that a text imports from dps_tf."""
    return [
        (f"{node.module}", alias.name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("dps_tf.")
        for alias in node.names
    ]


@functools.cache
def imports_of(file: Path) -> list[tuple[str, str]]:
    """Returns those of a file, which is parsed once for all rooms."""
    return imports(file.read_text(encoding="utf-8"))


def ways_past(
    found: list[tuple[str, str]], room: str, door: list[tuple[str, str]]
) -> list[str]:
    """Returns what is imported from a module of a room though its door offers it."""
    offered = {name for _, name in door}
    return [
        f"{module}.{name}"
        for module, name in found
        if module.startswith(f"dps_tf.{room}.") and name in offered
    ]


@pytest.mark.parametrize(
    "room", ["core", "data", "models", "objectives", "sparsity", "store", "training"]
)
def test_what_a_door_offers_is_imported_from_it(room):
    door = imports_of(PACKAGE / room / "__init__.py")
    assert door
    others = [file for file in FILES if PACKAGE / room not in file.parents]
    tests = sorted((SOURCE_TREE / "tests").rglob("*.py"))
    found = {
        str(file): ways_past(imports_of(file), room, door) for file in [*others, *tests]
    }
    assert not {file: names for file, names in found.items() if names}


def test_a_way_past_a_door_is_noticed():
    line = "from dps_tf.core.cell import Cell, parse_cell"
    door = imports("from dps_tf.core.cell import Cell")
    assert ways_past(imports(line), "core", door) == ["dps_tf.core.cell.Cell"]


def test_pure_modules_import_without_tensorflow_and_network():
    # A slot of a cluster that simulates does without TensorFlow.
    result = run_python(IMPORT_PURE, *PURE, "dps_tf.tuning.cluster_slots")
    assert result.returncode == 0, result.stderr


def test_every_module_imports_without_network():
    rooms = sorted(set(MODULES) - set(COMMANDS))
    result = run_python(IMPORT_OFFLINE, *rooms)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_imports_without_network(command):
    result = run_python(IMPORT_OFFLINE, command)
    assert result.returncode == 0, result.stderr


def test_the_linter_knows_every_command():
    configuration = configparser.ConfigParser()
    configuration.read(SOURCE_TREE / "setup.cfg")
    layers = configuration["importlinter:contract:directions"]["layers"]
    first = layers.split("\n")[1]
    assert sorted(name.strip() for name in first.split("|")) == COMMANDS


def test_package_alone_loads_no_tensorflow_and_chooses_legacy_keras():
    code = f"import os; os.environ.pop('TF_USE_LEGACY_KERAS', None){IMPORT_PURE}"
    code += "\nprint(os.environ.get('TF_USE_LEGACY_KERAS'))"
    result = run_python(code, "dps_tf")
    assert (result.returncode, result.stdout) == (0, "1\n"), result.stderr


def test_every_public_name_of_the_package_is_there():
    named = {name: getattr(dps_tf, name) for name in dps_tf.__all__}
    assert named["Goal"].__module__ == "dps_tf.core.goal"
    registers = [name for name in named if name.startswith("register_")]
    assert registers
    assert all(named[name].__doc__ for name in registers)


def test_a_module_that_goes_online_is_noticed():
    code = IMPORT_OFFLINE + "\nimport socket; socket.create_connection(('::1', 9))"
    assert "while importing" in run_python(code).stderr


def test_a_module_that_loads_tensorflow_is_noticed(tmp_path):
    (tmp_path / "gin.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}){IMPORT_PURE}"
    assert "loads ['gin']" in run_python(code, "gin").stderr


# That no module imports what unpickles, downloads or is another Keras, ruff sees.
PICKLES = re.compile(r"\w_pickle\b(?!=False)")


@pytest.mark.parametrize("line", ["frame.to_pickle(path)", "load(allow_pickle=True)"])
def test_a_line_that_pickles_is_noticed(line):
    assert PICKLES.search(line)
    assert not PICKLES.search("load(allow_pickle=False)")


def test_no_module_pickles_through_another_library():
    assert not [file for file in FILES if PICKLES.search(file.read_text("utf-8"))]


def test_keras_tuner_is_imported_when_a_sweep_begins_and_not_before():
    script = "import sys, dps_tf.cli.sweep_run; assert 'keras_tuner' not in sys.modules"
    # A fork has what other commands import, too.
    done = interpreter.run(["-c", script])
    assert done.returncode == 0, done.stderr
