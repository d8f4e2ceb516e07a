"""Would SkyPilot take the task, and does it run what is meant?"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.launch.rendered import LAUNCH
from tests.launch.stand_ins import StandIns

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "skypilot.json").read_text())
TASK = yaml.safe_load((LAUNCH / "skypilot" / "sweep.yaml").read_text())


def test_task_fits_the_published_specification():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(TASK, SCHEMA)
    recovery = TASK["resources"]["job_recovery"]
    assert 75 in recovery["recover_on_exit_codes"]
    assert not {0, 1, 2} & set(recovery["recover_on_exit_codes"])


@pytest.fixture
def home(tmp_path) -> StandIns:
    """A home directory into which SkyPilot has installed the package."""
    programs = StandIns(tmp_path / "programs", ["sleep", "dps-train"])
    installed = tmp_path / "dps_tf" / "bin"
    installed.mkdir(parents=True)
    (installed / "dps-train").symlink_to(programs.folder / "bin" / "dps-train")
    return programs


def run(home: StandIns, options: str = ""):
    return home.run(
        *("bash", "-c", TASK["run"]),
        HOME=str(home.folder.parent),
        GIN_FILE="lee2021/mnist_sgd",
        SWEEP_DIR="gs://b/a sweep",
        OPTIONS=options,
    )


def test_task_trains_with_the_options_given(home):
    assert run(home, "--strategy=tpu").returncode == 0
    assert home.calls() == [
        [
            *(
                "dps-train",
                "--gin_file=lee2021/mnist_sgd",
                "--sweep_dir=gs://b/a sweep",
            ),
            "--strategy=tpu",
        ]
    ]


@pytest.mark.parametrize("code", [1, 2, 75, 143])
def test_task_ends_as_training_ended(home, code):
    home.answer("dps-train", code=code)
    assert run(home).returncode == code
    assert bool(home.calls("sleep")) == (code == 75)
