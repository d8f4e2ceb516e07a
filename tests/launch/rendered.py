"""What the YAML templates become: documents, and the command lines in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from tests.packaging.source_tree import SOURCE_TREE

LAUNCH = SOURCE_TREE / "launch"
KUBERNETES = LAUNCH / "kubernetes"
_GIVEN = ("IMAGE=registry/dps_tf:1", "GIN_FILE=quickstart", "SWEEP_DIR=gs://b/sweep")

# Template and settings: the least that must be given, and each kind of node with all.
CASES = {
    "job": ("job.yaml",),
    "job with everything": (
        "job.yaml",
        *("NAME=mnist", "TASKS=9", "CPUS=2", "MEMORY=4Gi", "GPUS=8", "SPOT=yes"),
        *("GPU_KIND=nvidia-l4", "CLAIM=sweeps", "SERVICE_ACCOUNT=trainer", "QUEUE=q"),
        *("RESTARTS=3", "OPTION=--slots=8"),
        *("OPTION=--gin_bindings=workload.points = 8", "OPTION=--data_dir=/data"),
    ),
    "jobset on TPUs": ("jobset.yaml", str(KUBERNETES / "tpu.settings")),
    "jobset on GPUs with everything": (
        "jobset.yaml",
        str(KUBERNETES / "gpu.settings"),
        *("NAME=mnist", "NODES=3", "CPUS=90", "MEMORY=300Gi", "SPOT=yes"),
        *("CLAIM=sweeps", "SERVICE_ACCOUNT=trainer", "QUEUE=q", "RESTARTS=3"),
    ),
}


def document(case: str) -> dict[str, Any]:
    """Returns the one document of a rendered case."""
    template, *settings = CASES[case]
    return document_of(f"launch/kubernetes/{template}", [*_GIVEN, *settings])


def document_of(template: str, settings: Sequence[str]) -> dict[str, Any]:
    """Returns the one document that launch/render makes of a template.

    Args:
        template: its path from the root of the project.
        settings: files of settings and NAME=VALUE.
    """
    text = subprocess.run(
        [sys.executable, "launch/render", template, *settings],
        cwd=SOURCE_TREE,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return yaml.load(text, _StrictLoader)


def job_of(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the Job that a document is, or that a JobSet makes."""
    if found["kind"] == "Job":
        return found
    (replicated,) = found["spec"]["replicatedJobs"]
    template = replicated["template"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": template.get("metadata", {}),
        "spec": template["spec"],
    }


def command_of(found: dict[str, Any]) -> list[str]:
    """Returns the options that a document gives to dps_tf.train."""
    (container,) = job_of(found)["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice, like Kubernetes and unlike PyYAML."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key stands twice: {keys}"
        return super().construct_mapping(node, deep)
