"""Which process this is of keras-tuner's chief and workers, by its own variables."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dps_tf.core.errors import UserError
from dps_tf.core.sweep import SweepSpecification
from dps_tf.tuning.interruption import Interrupted

_VARIABLES = ("KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT", "KERASTUNER_TUNER_ID")


class ChiefLost(Interrupted):
    """The chief does not answer: everything is saved, run the command again."""


@dataclass(frozen=True)
class Post:
    """Which process this is.

    Attributes:
        address: of the chief, `ip:port`.
        name: of this process.
    """

    address: str
    name: str

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return "chief" in self.name


def post(sweep: SweepSpecification, is_shared: bool = False) -> Post | None:
    """Returns this process's post in a sweep; None where the variables are not set.

    Args:
        sweep: what is run.
        is_shared: whether it is to be shared through files as well.

    Raises:
        UserError: some of them are missing, or the sweep is shared through files, as
            that of a race has to be.
    """
    values = [os.environ.get(name, "") for name in _VARIABLES]
    if not any(values):
        return None
    for name, value in zip(_VARIABLES, values, strict=True):
        if not value:
            raise UserError(
                f"{name} is not set: keras-tuner's chief and workers need all of "
                f"{', '.join(_VARIABLES)}; unset them to run alone."
            )
    if is_shared:
        raise UserError(
            f"{_VARIABLES[0]} is set, and --share or --workers is given: start a chief "
            "and each of its workers by itself, or unset it."
        )
    for study in sweep.studies:
        if not study.workload.is_adaptive:
            raise UserError(
                f"{_VARIABLES[0]} is set, and {study.cell.name} has the points of "
                f"{study.workload.oracle!r}: a chief gives out trials of an oracle of "
                "keras-tuner only; unset it and give --share."
            )
    ip, port, name = values
    return Post(f"{ip}:{port}", name)
