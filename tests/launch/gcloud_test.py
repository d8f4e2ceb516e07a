"""Do the scripts for Google Cloud do the right thing when machines come and go?

The programs they call are stand-ins: nothing here has met a cloud.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch.rendered import LAUNCH
from tests.launch.stand_ins import StandIns

GROUP = LAUNCH / "compute_engine" / "group"
STARTUP = LAUNCH / "compute_engine" / "startup.sh"
QUEUED = LAUNCH / "tpu" / "queued_resource"
KNOWN = json.loads((Path(__file__).parent / "schemas" / "gcloud.json").read_text())

OPTIONS = ("--gin_file=quickstart", "--sweep_dir=gs://b/a sweep", "--strategy=tpu")
VARIABLES = {
    "DPS_TF_ZONE": "us-x1-a",
    "DPS_TF_IMAGE": "registry/dps_tf:tpu",
    "DPS_TF_OS_FAMILY": "tpu-family",
    "DPS_TF_OS_PROJECT": "tpu-project",
}


@pytest.fixture
def cloud(tmp_path):
    cloud = StandIns(
        tmp_path, ["gcloud", "docker", "sudo", "sleep", "curl", "systemctl"]
    )
    yield cloud
    for call in cloud.calls("gcloud"):
        check_published(call)


def check_published(call: list[str]) -> None:
    """Raises AssertionError for a command or flag that gcloud's reference lacks."""
    words = [word for word in call[1:] if not word.startswith("--")]
    (command,) = [c for c in KNOWN if words[: len(c.split())] == c.split()]
    for flag in call:
        if flag.startswith("--"):
            assert flag[2:].partition("=")[0] in KNOWN[command], (command, flag)


def verbs(cloud: StandIns, start: str) -> list[str]:
    """Returns the fourth or fifth word of each call that begins with `start`."""
    return [call[len(start.split())] for call in cloud.calls(start)]


class TestQueuedResource:
    DESCRIBE = "queued-resources describe"

    def test_requests_waits_trains_and_deletes(self, cloud):
        cloud.answer(self.DESCRIBE, code=1, once=True)
        cloud.answer(self.DESCRIBE, "WAITING_FOR_RESOURCES\n", once=True)
        cloud.answer(self.DESCRIBE, "ACTIVE\n")
        cloud.answer("tpu-vm ssh", runs_command=True)
        result = cloud.run(QUEUED, *OPTIONS, **VARIABLES)
        assert result.returncode == 0, result.stderr
        assert verbs(cloud, "gcloud compute tpus queued-resources") == [
            *("describe", "create", "describe", "describe", "delete")
        ]
        (create,) = cloud.calls("gcloud compute tpus queued-resources create")
        assert "--spot" in create and "--accelerator-type=v5litepod-8" in create
        (train,) = cloud.calls("docker run")
        assert train[-4:] == ["registry/dps_tf:tpu", *OPTIONS]
        assert "--privileged" in train and "--net=host" in train

    @pytest.mark.parametrize("state", ["SUSPENDED", "FAILED"])
    def test_a_preempted_tpu_is_deleted_and_requested_anew(self, cloud, state):
        cloud.answer(self.DESCRIBE, "ACTIVE\n", once=True)
        cloud.answer("tpu-vm ssh", code=255, once=True)
        cloud.answer(self.DESCRIBE, "SUSPENDING\n", once=True)
        cloud.answer(self.DESCRIBE, f"{state}\n", once=True)
        cloud.answer(self.DESCRIBE, code=1, once=True)
        cloud.answer(self.DESCRIBE, "ACTIVE\n")
        assert cloud.run(QUEUED, *OPTIONS, **VARIABLES).returncode == 0
        changes = verbs(cloud, "gcloud compute tpus queued-resources")
        changes = [verb for verb in changes if verb != "describe"]
        assert changes == ["delete", "create", "delete"]
        assert len(cloud.calls("gcloud compute tpus tpu-vm ssh")) == 2

    def test_training_that_left_with_75_is_started_again(self, cloud):
        cloud.answer(self.DESCRIBE, "ACTIVE\n")
        cloud.answer("tpu-vm ssh", code=75, once=True)
        cloud.answer("tpu-vm ssh", code=125, once=True)
        assert cloud.run(QUEUED, *OPTIONS, **VARIABLES).returncode == 0
        assert len(cloud.calls("gcloud compute tpus tpu-vm ssh")) == 3
        assert len(cloud.calls("sleep 60")) == 2

    @pytest.mark.parametrize("code", [1, 2])
    def test_a_defect_or_a_mistake_deletes_the_tpu(self, cloud, code):
        cloud.answer(self.DESCRIBE, "ACTIVE\n")
        cloud.answer("tpu-vm ssh", code=code)
        assert cloud.run(QUEUED, *OPTIONS, **VARIABLES).returncode == code
        assert verbs(cloud, "gcloud compute tpus queued-resources") == [
            *("describe", "delete")
        ]

    def test_restarting_has_an_end(self, cloud):
        cloud.answer(self.DESCRIBE, "ACTIVE\n")
        cloud.answer("tpu-vm ssh", code=75)
        result = cloud.run(QUEUED, *OPTIONS, **VARIABLES, DPS_TF_RESTARTS="2")
        assert result.returncode == 75
        assert len(cloud.calls("gcloud compute tpus tpu-vm ssh")) == 3
        assert cloud.calls("gcloud")[-1][4] == "delete"

    def test_a_refused_request_is_not_repeated(self, cloud):
        cloud.answer(self.DESCRIBE, code=1)
        cloud.answer("queued-resources create", code=1)
        assert cloud.run(QUEUED, *OPTIONS, **VARIABLES).returncode == 2

    def test_a_former_training_is_stopped_before_the_next(self, cloud):
        cloud.answer(self.DESCRIBE, "ACTIVE\n")
        cloud.answer("tpu-vm ssh", runs_command=True)
        cloud.run(QUEUED, *OPTIONS, **VARIABLES)
        assert verbs(cloud, "docker") == ["stop", "run"]


class TestGroup:
    MANAGED = "gcloud compute instance-groups managed"

    def prepare(self, cloud: StandIns, *lists: str) -> None:
        for found in lists:
            cloud.answer("list-instances", found, once=True)
        cloud.answer("describe", code=1)

    def test_makes_what_is_missing_watches_and_deletes(self, cloud):
        self.prepare(cloud, "a,RUNNING,NONE\nb,RUNNING,NONE\n", "b,RUNNING,NONE\n", "")
        result = cloud.run(GROUP, *OPTIONS, **VARIABLES, DPS_TF_SIZE="2")
        assert result.returncode == 0, result.stderr
        assert verbs(cloud, "gcloud compute instance-templates") == [
            *("describe", "create", "delete")
        ]
        assert verbs(cloud, self.MANAGED) == [
            *("describe", "create", *["list-instances"] * 3, "delete")
        ]
        (create,) = cloud.calls(f"{self.MANAGED} create")
        assert "--size=2" in create
        assert len(cloud.calls("sleep 60")) == 2

    def test_what_is_there_is_not_made_again(self, cloud):
        cloud.answer("list-instances", "")
        assert cloud.run(GROUP, *OPTIONS, **VARIABLES).returncode == 0
        assert "create" not in verbs(cloud, self.MANAGED)

    def test_a_stopped_machine_is_made_anew_unless_that_is_under_way(self, cloud):
        now = (
            "a,RUNNING,NONE\nb,TERMINATED,NONE\nc,STOPPED,NONE\nd,STOPPING,RECREATING\n"
        )
        self.prepare(cloud, now, "")
        cloud.run(GROUP, *OPTIONS, **VARIABLES)
        made_anew = [
            call[-1] for call in cloud.calls(f"{self.MANAGED} recreate-instances")
        ]
        assert made_anew == ["--instances=b", "--instances=c"]

    @pytest.mark.parametrize(
        ("spot", "model"), [("yes", "--provisioning-model=SPOT"), ("no", "STANDARD")]
    )
    def test_machines_are_spot_ones_if_wanted(self, cloud, spot, model):
        self.prepare(cloud, "")
        cloud.run(GROUP, *OPTIONS, **VARIABLES, DPS_TF_SPOT=spot)
        (create,) = cloud.calls("gcloud compute instance-templates create")
        assert model in " ".join(create)
        assert ("termination" in " ".join(create)) == (spot == "yes")

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ([], "give the options of dps_tf.train"),
            (["--sweep_dir", "gs://b/d"], "write options as --name=value: gs://b/d"),
            (["--gin_bindings=a = 1\nb = 2"], "an option holds a line break"),
        ],
    )
    def test_a_mistake_is_told_before_anything_is_made(self, cloud, options, sentence):
        result = cloud.run(GROUP, *options, **VARIABLES)
        assert result.returncode == 2 and sentence in result.stderr
        assert not cloud.calls()


class TestStartup:
    def start(self, cloud: StandIns, tmp_path, restarts: int = 5):
        for name, value in {
            "attributes/train-image": "eu.pkg.dev/p/dps_tf:tpu",
            "attributes/train-options": "\n".join(OPTIONS) + "\n",
            "attributes/train-restarts": str(restarts),
            "attributes/train-wait": "60",
            "attributes/created-by": "projects/1/zones/z/instanceGroupManagers/dps-tf",
            "instance/zone": "projects/1/zones/us-x1-a",
            "instance/name": "dps-tf-abcd",
        }.items():
            cloud.answer(f"^curl .*{name}$", value)
        return cloud.run(STARTUP, DPS_TF_FOLDER=str(tmp_path / "state"))

    def left(self, cloud: StandIns) -> bool:
        start = "gcloud compute instance-groups managed delete-instances"
        calls = cloud.calls(start)
        assert calls in (
            [],
            [
                [
                    *(*start.split(), "dps-tf", "--instances=dps-tf-abcd"),
                    *("--zone=us-x1-a", "--quiet"),
                ]
            ],
        )
        return bool(calls)

    @pytest.mark.parametrize("code", [0, 1, 2])
    def test_a_machine_leaves_when_training_has_ended(self, cloud, tmp_path, code):
        cloud.answer("docker run", code=code)
        cloud.answer("systemctl", "running\n")
        self.start(cloud, tmp_path)
        (train,) = cloud.calls("docker run")
        assert train[-2] == "eu.pkg.dev/p/dps_tf:tpu"
        options = Path(train[-1].removeprefix("--flagfile="))
        assert options.read_text().splitlines() == list(OPTIONS)
        assert self.left(cloud)

    @pytest.mark.parametrize("code", [75, 125, 137])
    def test_training_is_started_again_on_the_same_machine(self, cloud, tmp_path, code):
        cloud.answer("docker run", code=code, once=True)
        cloud.answer("systemctl", "running\n")
        self.start(cloud, tmp_path)
        assert len(cloud.calls("docker run")) == 2
        assert self.left(cloud)

    def test_a_machine_that_is_being_preempted_stays_in_the_group(
        self, cloud, tmp_path
    ):
        cloud.answer("docker run", code=75)
        cloud.answer("systemctl", "stopping\n")
        self.start(cloud, tmp_path)
        assert len(cloud.calls("docker run")) == 1
        assert not self.left(cloud)

    def test_starting_again_has_an_end(self, cloud, tmp_path):
        cloud.answer("docker run", code=75)
        cloud.answer("systemctl", "running\n")
        self.start(cloud, tmp_path, restarts=2)
        assert len(cloud.calls("docker run")) == 3
        assert self.left(cloud)
