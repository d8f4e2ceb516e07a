"""Does the sbatch file requeue its task when it should, and only then?

Slurm is a stand-in here; tests/distribution/slurm_test.py has the real one.
"""

from __future__ import annotations

import pytest

from tests.launch.rendered import LAUNCH
from tests.launch.stand_ins import StandIns

SBATCH = LAUNCH / "slurm" / "sweep.sbatch"
TASK = {
    "SLURM_JOB_ID": "40",
    "SLURM_ARRAY_JOB_ID": "40",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_SUBMIT_DIR": "/nowhere",
}


@pytest.fixture
def node(tmp_path) -> StandIns:
    node = StandIns(tmp_path, ["python", "squeue", "scontrol"])
    node.answer("squeue", "RUNNING\n")
    return node


def run(node: StandIns, *options: str, **changes: str):
    variables = {**TASK, "DPS_TF_VENV": str(node.folder), **changes}
    return node.run("bash", SBATCH, *options, **variables)


def test_training_gets_the_options(node):
    assert run(node, "--gin_file=f", "--sweep_dir=a sweep").returncode == 0
    assert node.calls("python -m") == [
        ["python", "-m", "dps_tf.train", "--gin_file=f", "--sweep_dir=a sweep"]
    ]
    assert not node.calls("scontrol")


@pytest.mark.parametrize("code", [75, 134, 137, 143])
def test_what_may_go_better_is_requeued(node, code):
    node.answer("dps_tf.train", code=code)
    assert run(node).returncode == code
    # The job number alone would name the whole array.
    assert node.calls("scontrol") == [["scontrol", "requeue", "40_3"]]


def test_a_job_without_an_array_is_requeued_too(node):
    node.answer("dps_tf.train", code=75)
    run(node, SLURM_ARRAY_JOB_ID="", SLURM_ARRAY_TASK_ID="")
    assert node.calls("scontrol") == [["scontrol", "requeue", "40"]]


@pytest.mark.parametrize("code", [1, 2])
def test_a_defect_or_a_mistake_is_not_requeued(node, code):
    node.answer("dps_tf.train", code=code)
    assert run(node).returncode == code
    assert not node.calls("scontrol")


# Cancelled, preempted, or requeued by somebody else: Slurm does what is to be done.
@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING", ""])
def test_a_job_that_is_being_ended_is_left_to_who_ends_it(tmp_path, state):
    node = StandIns(tmp_path, ["python", "squeue", "scontrol"])
    node.answer("squeue", f"{state}\n")
    node.answer("dps_tf.train", code=75)
    assert run(node).returncode == 75
    assert not node.calls("scontrol")


def test_requeueing_has_an_end(node):
    node.answer("dps_tf.train", code=75)
    result = run(node, SLURM_RESTART_COUNT="5", DPS_TF_RESTARTS="5")
    assert result.returncode == 75 and "submit it again" in result.stdout
    assert not node.calls("scontrol")


def test_a_missing_environment_is_a_mistake_of_the_user(node):
    result = run(node, DPS_TF_VENV="/nowhere")
    assert result.returncode == 2
    assert "error: there is no /nowhere/bin/python" in result.stderr
