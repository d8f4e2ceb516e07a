"""One sweep on the processes of a group that train the same batches.

The first process runs the command as ever, and alone reads and writes its directory;
the others load the data and make each call that its programs make.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from dps_tf.core import GroupLost, StudySpecification, UserError
from dps_tf.data import Dataset
from dps_tf.store import StoreError
from dps_tf.training import Program, environment, rendezvous
from dps_tf.training import group as groups
from dps_tf.tuning import build
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.resources import Resources

_DEFECT, _USER_ERROR, _RUN_AGAIN = 1, 2, groups.RUN_AGAIN  # as in `command_line`
_LOOK_SECONDS = 0.2


def check(options: Options) -> None:
    """Raises UserError for options that give trials to other processes as well."""
    if options.workers != 1 or not options.sweep_dir:
        raise UserError(
            "the processes of --strategy=multi_worker_mirrored train the same batches "
            f"of one --sweep_dir, here {options.sweep_dir!r}: name one, and leave "
            "--workers out."
        )


def run(options: Options, lead: Callable[[Resources], int]) -> int:
    """Runs a command in one process of the group of TF_CONFIG; returns its exit code.

    The first process leads, with the devices of all of them. All processes end with its
    code, or with 75 where one is gone.
    """
    try:
        group = rendezvous.join(environment())
    except GroupLost as error:
        return _lost(error, None)
    try:
        if isinstance(group, groups.Follower):
            return _follow(group, options)
        return _lead(group, lead)
    except GroupLost as error:
        return _lost(error, group.deadline)


def _lost(error: GroupLost, deadline: groups.Deadline | None) -> int:
    if deadline is not None:
        deadline.is_told = True
    print(f"error: {error}", file=sys.stderr, flush=True)
    return _RUN_AGAIN


def _lead(leader: groups.Leader, lead: Callable[[Resources], int]) -> int:
    code = _DEFECT
    try:
        code = lead(Resources([leader.strategy], leader=leader))
        return code
    except GroupLost:
        code = _RUN_AGAIN
        raise
    except (UserError, StoreError):
        code = _USER_ERROR
        raise
    finally:
        leader.end(code)


def _follow(follower: groups.Follower, options: Options) -> int:
    """Does what it is told until it is told to end; returns the leader's exit code."""
    resources = Resources([follower.strategy])
    resources.data_placement = options.data_placement
    study: tuple[StudySpecification, Dataset] | None = None
    program: Program | None = None
    is_told = False
    with StopRequest().listening() as stop:
        while True:
            if stop() and not is_told:
                is_told = True
                follower.send("stop", signal=stop.signal_name)
            call = follower.receive(_LOOK_SECONDS)
            if call is None:
                continue
            if call.name == "end":
                return _ended(follower, int(call.values["code"]))
            if call.name == "prepare":
                program = None
                study, lacks = _loaded(call.values, options.data_dir)
                follower.send("prepared", lacks=lacks)
            elif call.name == "build":
                assert study is not None
                program = resources.programs(*study)[0]
            else:
                # That of the latest study: nothing is called before it is built.
                assert program is not None
                groups.follow(program, call)


def _ended(follower: groups.Follower, code: int) -> int:
    follower.deadline.is_told = True
    follower.deadline.code = code
    if code in (_DEFECT, _USER_ERROR):
        print(
            f"error: the first process of the group ended with exit code {code} and "
            "says why.",
            file=sys.stderr,
        )
    return code


def _loaded(
    values: Mapping[str, Any], data_dir: str | None
) -> tuple[tuple[StudySpecification, Dataset] | None, str]:
    """Returns a study with its data, and what is lacking, as a sentence, or ''."""
    specification = StudySpecification.from_json(values["specification"])
    try:
        dataset = build.load_dataset(specification.workload, data_dir)
    except UserError as error:
        return None, str(error)
    if dataset.content_hash != values["content_hash"]:
        return None, (
            f"its {dataset.name} holds other examples than that of the first process: "
            "prepare it once, and copy it."
        )
    return (specification, dataset), ""
