"""The parts of a study that are code of a user's own."""

from __future__ import annotations

from dps_tf import models, objectives, optim, sparsity
from dps_tf.core import StudySpecification
from dps_tf.data import Dataset


def codes_of(study: StudySpecification, dataset: Dataset) -> dict[str, str]:
    """Returns the hash of the code of each part of a study that is a user's own.

    A network is not among them: the hash of its structure includes its code.
    """
    workload = study.workload
    parts = {
        "optimizer": optim.OPTIMIZERS[workload.optimizer],
        "schedule": optim.SCHEDULES[workload.learning_rate_schedule],
        "objective": objectives.build_for(workload, dataset.token_bytes),
        "transform": dataset.transform,
    }
    hashes = {name: models.code_hash(part) for name, part in parts.items()}
    hashes["sparsity_method"] = sparsity.own_code(study)
    return {name: digest for name, digest in hashes.items() if digest}


def is_own(study: StudySpecification, dataset: Dataset) -> bool:
    """Returns whether a study runs code that is a user's own."""
    network = models.NETWORKS[study.workload.network]
    return bool(codes_of(study, dataset) or models.code_hash(network))
