"""Would a cluster take the rendered documents, and do they say what is meant?"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.launch.rendered import CASES, document, job_of

SCHEMAS = Path(__file__).parent / "schemas"
JOBSETS = [case for case in CASES if case.startswith("jobset")]
# The oldest that the templates name.
OLDEST = "1.29"

each_case = pytest.mark.parametrize("case", CASES)


@pytest.mark.parametrize("version", [OLDEST, "newest"])
@each_case
def test_job_fits_the_published_schema(case, version):
    kubernetes = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    if version == "newest":
        version = kubernetes.latest_version()
    kubernetes.validate(job_of(document(case)), version, strict=True)


@pytest.mark.parametrize("case", JOBSETS)
def test_jobset_fits_the_published_types(case):
    schema = json.loads((SCHEMAS / "jobset.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document(case), schema)


# What the API server checks beyond the schema.
@each_case
def test_job_keeps_the_rules_between_fields(case):
    spec = job_of(document(case))["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] >= 1
    # Pod failure policies and limits per index ask for these.
    assert pod["restartPolicy"] == "Never"
    assert spec["podReplacementPolicy"] == "Failed"
    assert isinstance(spec["backoffLimitPerIndex"], int)
    for rule in spec["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        assert ("onPodConditions" in rule) != (codes is not None)
        assert codes is None or codes["containerName"] == container["name"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert all(isinstance(value, str) for value in pod["nodeSelector"].values())
    requests, limits = (container["resources"][k] for k in ("requests", "limits"))
    assert requests["memory"] == limits["memory"]


@each_case
def test_containers_have_no_right_that_they_do_not_need(case):
    pod = job_of(document(case))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    rights, has_tpu = container["securityContext"], "TPU" in case
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert "privileged" not in rights
    more = {"add": ["SYS_RESOURCE"]} if has_tpu else {}
    assert rights["capabilities"] == {"drop": ["ALL"], **more}
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (pod["securityContext"]["runAsUser"] == 0) == has_tpu
    assert pod["securityContext"].get("runAsNonRoot", False) == (not has_tpu)
    assert pod["automountServiceAccountToken"] is False
    # With the root file system closed, what training writes beside the sweep is there.
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {"name": mounts["/tmp"], "emptyDir": {}} in pod["volumes"]


@each_case
def test_exit_codes_and_disruptions_have_their_consequences(case):
    spec = job_of(document(case))["spec"]
    rules = spec["podFailurePolicy"]["rules"]
    # A disrupted pod leaves with 75 too: its condition comes first.
    assert rules[0]["action"] == "Ignore"
    assert rules[0]["onPodConditions"] == [
        {"type": "DisruptionTarget", "status": "True"}
    ]
    actions = {
        code: rule["action"]
        for rule in rules[1:]
        for code in rule["onExitCodes"]["values"]
    }
    assert actions == {1: "FailIndex", 2: "FailJob"}
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 10


def test_options_come_in_where_they_belong():
    full = document("job with everything")
    pod = full["spec"]["template"]["spec"]
    assert full["metadata"]["name"] == "mnist"
    assert full["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert pod["serviceAccountName"] == "trainer"
    assert pod["nodeSelector"] == {
        "kubernetes.io/os": "linux",
        "cloud.google.com/gke-spot": "true",
        "cloud.google.com/gke-accelerator": "nvidia-l4",
    }
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    claims = [v.get("persistentVolumeClaim") for v in pod["volumes"]]
    assert {"claimName": "sweeps"} in claims
    least = document("job")
    assert list(least["metadata"]["labels"]) == ["app.kubernetes.io/name"]
    assert "nvidia.com/gpu" not in str(least)


def test_a_tpu_node_gives_its_chips_to_one_process():
    job = job_of(document("jobset on TPUs"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    chips = int(container["resources"]["limits"]["google.com/tpu"])
    sides = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    # All chips of the topology are on the one host.
    assert chips == int(sides[0]) * int(sides[1])
    assert "--strategy=tpu_cores" in container["args"]
