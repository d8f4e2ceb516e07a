"""What every command does alike: help, missing flags, full disks, modules of users."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dps_tf.__main__ import COMMANDS
from dps_tf.cli.command_line import import_modules
from dps_tf.core import UserError
from tests import interpreter
from tests.made_up.sweeps import Sweep, write_sweep

NEEDED = {
    "export": "--sweep_dir is missing: where the sweep is kept.",
    "fit": "--csv is missing",
    "import_runs": "--read is missing: folder or file that holds the runs.",
    "measure": "--sweep_dir is missing: where the sweep is kept.",
    "new": "--name is missing",
    "prepare": "--dataset is missing",
    "recommend": "give --sweep_dir, or --csv: a table",
    "report": "--sweep_dir is missing",
    "status": "--sweep_dir is missing: a sweep directory",
    "train": "--sweep_dir is missing: where the sweep is kept.",
}


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        **{"stdout": subprocess.PIPE, **options},
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_package_lists_every_command():
    done = run("-m", "dps_tf")
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"python -m dps_tf.{name} " in done.stdout
    folder = Path(sys.modules["dps_tf"].__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    assert {name for name in modules if not name.startswith("_")} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_no_failure(name, tmp_path):
    done = run("-m", f"dps_tf.{name}", "--help")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    # Flags of the command alone, each once, under a heading.
    source = Path(importlib.util.find_spec(f"dps_tf.{name}").origin).read_text()
    flag = r"^(?:_\w+ = )?(?:flags\.DEFINE_|common\.(?!section))"
    defined = re.findall(flag, source, re.MULTILINE)
    shown = re.findall(r"^  --(\w+)", done.stdout, re.MULTILINE)
    assert len(shown) == len(set(shown)) == len(defined)
    assert re.search(r"\n\n[A-Z][\w ]+:\n  --", done.stdout)
    for noise in ("absl", "/dps_tf/", "repeat this option", "an integer", "--[no]"):
        assert noise not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 88
    # As pip installs it.
    script = tmp_path / f"dps-{name.replace('_', '-')}"
    script.write_text(f"from dps_tf.{name} import main\nmain()\n")
    installed = interpreter.run([script, "--help"], modules=interpreter.TABLES)
    assert installed.stdout == done.stdout


def test_the_usual_flags_of_training_come_first():
    shown = interpreter.run(["-m", "dps_tf.train", "--help"]).stdout
    usual, _, others = shown.partition("\n\nDevices and machines:\n")
    first = ["gin_file", "gin_bindings", "sweep_dir", "data_dir", "import", "dry_run"]
    first += ["plan", "like", "price", "watts", "step_times"]
    assert re.findall(r"^  --(\w+)", usual, re.MULTILINE) == first
    assert "--slots=N               Trials side by side" in others


@pytest.mark.parametrize("name", COMMANDS)
def test_a_missing_flag_is_told_at_once(name):
    begun = time.process_time(), os.times().children_user
    done = run("-m", f"dps_tf.{name}")
    # Of processor time: machines that run tests are busy.
    spent = os.times().children_user - begun[1]
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {NEEDED[name]}")
    assert done.stderr.count("\n") == 1
    assert spent < 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_full_output_is_one_sentence(buffered):
    with Path("/dev/full").open("w") as full:
        environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
        done = run("-m", "dps_tf", stdout=full, env=environment)
    assert done.returncode == 2
    assert done.stderr == (
        "error: the printed output cannot be written: No space left on device; if it "
        "is sent to a file, free some space on that disk, and run the command again.\n"
    )


@pytest.mark.skipif(not Path("/proc").exists(), reason="a file system of Linux")
def test_a_folder_that_only_the_system_makes_is_told():
    words = ["-m", "dps_tf.train", "--gin_file=nqm/sgd", "--sweep_dir=/proc/sweep"]
    done = interpreter.run([*words, "--gin_bindings=sweep.batch_sizes = (1,)"])
    assert done.returncode == 2
    [line] = [x for x in done.stderr.splitlines() if x.startswith("error:")]
    assert "/proc/sweep" in line and "choose another directory" in line
    assert "Traceback" not in done.stderr


def test_a_machine_without_temporary_folders_is_told(tmp_path):
    # As `tempfile` answers there.
    code = (
        "import tempfile; from dps_tf import _tensorflow\n"
        "from dps_tf.cli.command_line import command\n"
        "def nowhere(*_): raise FileNotFoundError(2, 'No usable temporary directory "
        "found in [...]')\n"
        "tempfile.TemporaryFile = nowhere\n"
        "command(_tensorflow.import_tensorflow)()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no folder for temporary files")
    assert str(tmp_path) in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("in_command", [True, False])
def test_a_command_imports_nothing_that_only_optional_parts_need(tmp_path, in_command):
    # Packages of the user stand for those that TensorFlow and Keras look for.
    for name in ("jax", "matplotlib", "tensorflow"):
        needs = "" if name == "jax" else "import importlib.util, sys, gc\n"
        if name == "tensorflow":
            needs += (
                "assert not gc.isenabled()\n"
                "try: import jax; has = True\n"
                "except ImportError: has = False\n"
            )
        (tmp_path / f"{name}.py").write_text(needs)
    code = (
        "import gc, sys; from dps_tf._tensorflow import import_tensorflow\n"
        f"import_tensorflow(in_command={in_command})\n"
        f"import tensorflow; assert tensorflow.has is not {in_command}\n"
        "assert gc.isenabled(); import jax, matplotlib; assert jax and matplotlib"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


@pytest.mark.slow
def test_the_start_up_lines_of_tensorflow_are_shown_where_they_are_asked_for():
    code = "import dps_tf; from dps_tf.data import Source; help(dps_tf.sweep)"
    unset = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    for more, is_silent in (({}, True), ({"TF_CPP_MIN_LOG_LEVEL": "0"}, False)):
        done = run("-c", code, env=unset | more)
        assert done.returncode == 0
        assert (not done.stderr) == is_silent, done.stderr
        assert done.stdout.startswith("Help on function configure")


def test_modules_of_the_user_are_found_beside_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != ""])
    (tmp_path / "my_workloads_beside.py").write_text("VALUE = 3\n")
    import_modules(["my_workloads_beside"])
    assert sys.modules.pop("my_workloads_beside").VALUE == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "--import=my_broken: No module named 'my_broken'; run from its folder"),
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("\n1 / 0", r"--import=my_broken fails with ZeroDivisionError: .*my_broken.py, "
         r"line 2\); correct the module"),
        ("def (", "--import=my_broken fails with SyntaxError"),
    ],
)  # fmt: skip
def test_a_wrong_module_is_one_sentence(tmp_path, monkeypatch, text, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if text is not None:
        (tmp_path / "my_broken.py").write_text(text)
    with pytest.raises(UserError, match=sentence) as refusal:
        import_modules(["my_broken"])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["export", "measure"])
def test_commands_tell_of_a_wrong_module_without_a_traceback(name, tmp_path):
    sweep = write_sweep(tmp_path / "sweep", Sweep(batch_sizes=(16,)))
    flags = [f"--sweep_dir={sweep}", "--cell=c", "--trial=0"]
    flags.append("--import=no_such_module")
    more = [f"--out={tmp_path}"] if name == "export" else []
    done = interpreter.run(["-m", f"dps_tf.{name}", *flags, *more])
    assert done.returncode == 2
    assert done.stderr.startswith("error: --import=no_such_module")
    assert done.stderr.count("\n") == 1
