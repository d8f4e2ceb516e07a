"""Would the launchers of Ray clusters be taken, and do they run what is meant?"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.launch.dry_runs import dry_run
from tests.launch.rendered import LAUNCH, document_of
from tests.launch.stand_ins import StandIns

RAY = LAUNCH / "ray"
GIVEN = ("--gin_file=quickstart", "--sweep_dir=gs://b/a sweep", "--data_dir=/data")
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_SUBMIT_DIR": "/nowhere",
}
JOB = (
    *("IMAGE=registry/dps_tf:1", "GIN_FILE=quickstart", "SWEEP_DIR=gs://b/a sweep"),
    *("OPTION=--data_dir=/data", "OPTION=--gin_bindings=workload.points = 8"),
    *("NODES=3", "GPUS=8"),
)


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> StandIns:
    """A node of a Slurm job, with stand-ins for programs."""
    programs = ["srun", "scontrol", "squeue", "python", "ray"]
    node = StandIns(tmp_path, programs)
    node.answer("scontrol show", "node1\nnode2\n")
    node.answer("squeue", "RUNNING\n")
    node.answer("secrets", "token\n")
    # As the real one: no cluster is healthy before it was started.
    node.answer("ray health-check", code=1, until="^srun")
    return node


def of_slurm(node: StandIns, code: int = 0) -> list[str]:
    """Runs the sbatch file; returns the driver's command."""
    node.answer("dps_tf.train", code=code)
    variables = {**SLURM, "DPS_TF_VENV": str(node.folder)}
    done = node.run("bash", RAY / "sweep.sbatch", *GIVEN, **variables)
    assert done.returncode == code, done.stderr
    (call,) = node.calls("python -m")
    return call


def of_rayjob() -> list[str]:
    """Returns the words of a RayJob's entry point."""
    return shlex.split(document_of("launch/ray/rayjob.yaml", JOB)["spec"]["entrypoint"])


def test_slurm_runs_one_cluster_over_the_nodes_of_the_job(node):
    call = of_slurm(node)
    assert "--ray_address=node1:6379" in call
    assert call[-3:] == list(GIVEN)
    (nodes,) = node.calls("srun")
    assert nodes[-2:] == ["node1:6379", "6379"]
    assert not node.calls("scontrol requeue")


def test_slurm_requeues_what_was_interrupted(node):
    of_slurm(node, code=75)
    assert node.calls("scontrol requeue") == [["scontrol", "requeue", "7"]]


@pytest.mark.parametrize("code", [1, 2])
def test_slurm_does_not_requeue_a_defect_or_a_mistake(node, code):
    of_slurm(node, code=code)
    assert not node.calls("scontrol requeue")


def test_kuberay_job_has_slots_on_its_workers_only_and_asks_for_a_token():
    spec = document_of("launch/ray/rayjob.yaml", JOB)["spec"]
    cluster = spec["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    assert cluster["authOptions"] == {"mode": "token"}
    (slots,) = cluster["workerGroupSpecs"]
    assert slots["replicas"] == 3
    (container,) = slots["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.slow
def test_every_command_line_is_understood_by_the_real_command(node, tmp_path):
    text = (LAUNCH / "README.md").read_text()
    shown = re.findall(r"python -m dps_tf.train (--engine=ray.*)", text)
    commands = [shlex.split(line.removesuffix("\\")) for line in shown]
    assert len(commands) == 2
    commands += [_options(call) for call in (of_slurm(node), of_rayjob())]
    (tmp_path / "elsewhere").mkdir()
    for code, said in dry_run(commands, tmp_path / "elsewhere"):
        assert code == 0, said
        assert "trials: " in said


def _options(call: list[str]) -> list[str]:
    return call[call.index("--engine=ray") :]
