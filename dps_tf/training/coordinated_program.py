"""A program that all processes of a group run: each call is told before it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps_tf.core.errors import GroupLost, UserError
from dps_tf.core.execution import TrialState
from dps_tf.core.study import VALIDATION
from dps_tf.training.evaluation import Evaluation
from dps_tf.training.group import Leader
from dps_tf.training.peer_connection import Message
from dps_tf.training.program import Advance, Program


class CoordinatedProgram(Program):
    """The leader's program; `follow` makes the same calls on those of the others."""

    def __init__(self, leader: Leader, *arguments: Any, **keywords: Any):
        """Takes the arguments of `Program` behind the leader."""
        self._leader = leader
        super().__init__(*arguments, **keywords)

    def load(
        self,
        state: TrialState,
        point: Mapping[str, float],
        masks: Sequence[np.ndarray] | None = None,
        seed: int = 0,
    ) -> None:
        """Makes the program that of one trial, everywhere."""
        arrays = [*state.arrays, *(masks or ())]
        kept = [np.asarray(array) for array in arrays]
        self._leader.send_call(
            "load",
            kept,
            step=int(state.step),
            point=dict(point),
            masks=None if masks is None else len(masks),
            seed=seed,
        )
        super().load(state, point, masks, seed)

    def advance(self, indices: np.ndarray) -> Advance:
        """Trains on the given batches, everywhere."""
        self._leader.send_call("advance", [indices])
        return _together(lambda: super(CoordinatedProgram, self).advance(indices))

    def evaluate(self, split: str = VALIDATION) -> Evaluation:
        """Evaluates, everywhere; returns what was found here."""
        self._leader.send_call("evaluate", split=split)
        return _together(lambda: super(CoordinatedProgram, self).evaluate(split))


def _together(call: Any) -> Any:
    """Makes a call that the others are making too.

    Raises:
        GroupLost: it failed here, so the others may wait for it for ever.
    """
    try:
        return call()
    except GroupLost:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise GroupLost(
            "a step that the whole group makes failed in its first process "
            f"({reason}): start all of them again."
        ) from error


def follow(program: Program, call: Message) -> None:
    """Makes a call that the leader has told.

    Raises:
        UserError: it is none of a program.
    """
    if call.name == "load":
        arrays, values = list(call.arrays), call.values
        masks = values["masks"]
        state = arrays if masks is None else arrays[: len(arrays) - masks]
        program.load(
            TrialState(values["step"], tuple(state)),
            values["point"],
            None if masks is None else arrays[len(arrays) - masks :],
            values["seed"],
        )
    elif call.name == "advance":
        program.advance(call.arrays[0])
    elif call.name == "evaluate":
        program.evaluate(call.values["split"])
    else:
        raise UserError(f"the first process of the group asks for {call.name!r}.")
