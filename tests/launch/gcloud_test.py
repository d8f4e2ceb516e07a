"""Does the script for Cloud TPU do the right thing when machines come and go?

The programs they call are stand-ins: nothing here has met a cloud.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch.rendered import LAUNCH
from tests.launch.stand_ins import StandIns

QUEUED = LAUNCH / "tpu" / "queued_resource"
KNOWN = json.loads((Path(__file__).parent / "schemas" / "gcloud.json").read_text())

OPTIONS = ("--gin_file=quickstart", "--sweep_dir=gs://b/a sweep", "--strategy=tpu")
VARIABLES = {"DPS_TF_ZONE": "us-x1-a", "DPS_TF_IMAGE": "registry/dps_tf:tpu"}


@pytest.fixture
def cloud(tmp_path):
    cloud = StandIns(tmp_path, ["gcloud", "docker", "sudo", "sleep"])
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
        assert "--privileged" not in train and "--net=host" in train
        # This machine has no chips; the list of them is made over there.
        assert not [option for option in train if option.startswith("--device")]
        assert "--cap-drop=ALL" in train

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
