"""Would the launchers of Ray clusters be taken, and do they run what is meant?"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.launch.dry_runs import dry_run
from tests.launch.rendered import LAUNCH, document_of
from tests.launch.skypilot_test import SCHEMA
from tests.launch.stand_ins import StandIns

RAY = LAUNCH / "ray"
GIVEN = ("--gin_file=quickstart", "--sweep_dir=gs://b/a sweep", "--data_dir=/data")
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_SUBMIT_DIR": "/nowhere",
}
TASK = yaml.safe_load((RAY / "skypilot.yaml").read_text())
JOB = (
    *("IMAGE=registry/dps_tf:1", "GIN_FILE=quickstart", "SWEEP_DIR=gs://b/a sweep"),
    *("OPTION=--data_dir=/data", "OPTION=--gin_bindings=workload.points = 8"),
    *("NODES=3", "GPUS=8"),
)


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> StandIns:
    """A node of a Slurm job, or of a task of SkyPilot, with stand-ins for programs."""
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


def of_skypilot(folder: Path) -> list[str]:
    programs = StandIns(folder / "dps_tf", ["ray", "dps-train"])
    programs.answer("ray health-check", code=1, until="ray start --head")
    variables = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "HOME": str(folder)}
    variables |= {**TASK["envs"], "GIN_FILE": "quickstart", "SWEEP_DIR": "gs://b/s"}
    variables["RAY_AUTH_TOKEN"] = "token"
    for rank in ("0", "1"):
        script = ("bash", "-c", TASK["run"])
        done = programs.run(*script, SKYPILOT_NODE_RANK=rank, **variables)
        assert done.returncode == 0, done.stderr
    head, node = programs.calls("ray start")
    assert "--head" in head and "--address=10.0.0.1:6379" in node
    (call,) = programs.calls("dps-train")
    return call


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


def test_skypilot_takes_the_task_and_starts_one_cluster(tmp_path):
    jsonschema.validate(TASK, SCHEMA)
    call = of_skypilot(tmp_path)
    assert "--ray_address=10.0.0.1:6379" in call


def test_rays_autoscaler_takes_the_cluster():
    ray = pytest.importorskip("ray")
    schema = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    cluster = yaml.safe_load((RAY / "cluster.yaml").read_text())
    jsonschema.validate(cluster, json.loads(schema.read_text()))
    assert cluster["head_node_type"] in cluster["available_node_types"]
    assert cluster["available_node_types"]["head"]["resources"] == {"CPU": 0}


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
    (head,) = re.findall(r"dps-train (--engine.*?)'\n", text + _commented(), re.DOTALL)
    commands.append(shlex.split(head.replace("\\\n#", "")))
    commands += [
        _options(call)
        for call in (of_slurm(node), of_rayjob(), of_skypilot(tmp_path / "home"))
    ]
    (tmp_path / "elsewhere").mkdir()
    for code, said in dry_run(commands, tmp_path / "elsewhere"):
        assert code == 0, said
        assert "trials: " in said


def _commented() -> str:
    return (RAY / "cluster.yaml").read_text()


def _options(call: list[str]) -> list[str]:
    return call[call.index("--engine=ray") :]
