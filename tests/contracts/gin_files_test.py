"""Does every shipped gin file say what it is for, and run?"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from dps_tf.core import StudySpecification, SweepSpecification
from dps_tf.store import LocalFiles, SweepReader
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.options import Options
from dps_tf.workloads import reading as configurations
from dps_tf.workloads.reading import read_configuration
from tests.made_up.small_sweeps import launched

NAMES = configurations.shipped()
SMOKE = [name for name in NAMES if name.startswith("smoke/")]
# Large data and networks, and the studies that were made of them for two cores.
CATALOGUE = [name for name in NAMES if name.startswith(("shallue2019/", "modern/"))]
# These come first; the others are run with the slow tests.
QUICK = {"smoke/quickstart", "smoke/one_run", "smoke/maximized_accuracy"}
# Data sets that need no preparation.
MADE_UP = {"digits", "simulation", "synthetic", "synthetic_tokens"}
OUTCOMES = ["complete", "incomplete", "infeasible", "censored", "failed"]


def head(name: str) -> str:
    """Returns the comment that a file opens with, as one line."""
    lines = configurations.resolve(name).read_text().splitlines()
    comment = [line[1:].strip() for line in lines if line.startswith("#")]
    return " ".join(comment)


@functools.cache
def read(name: str) -> tuple[SweepSpecification, str]:
    """Returns the sweep of a shipped file, and its text."""
    return read_configuration([name], [])


def sweep_of(name: str) -> SweepSpecification:
    return read(name)[0]


@pytest.mark.parametrize("name", NAMES)
def test_file_opens_with_question_command_cost_and_result(name: str) -> None:
    text = head(name)
    assert "?" in text.split("Command:")[0]
    command = re.search(r"Command: +(python -m dps_tf\.train --gin_file=(\S+))", text)
    assert command is not None
    assert command[2] == name
    assert text.index("Command:") < text.index("Cost:") < text.index("Result:")
    if name in CATALOGUE or name.startswith("lee2021/"):
        assert "Source:" in text


@pytest.mark.parametrize("name", NAMES)
def test_data_are_prepared_as_the_sweep_reads_them(name: str) -> None:
    line = re.search(
        r"Data: +python -m dps_tf\.prepare (.*?) (?:Cost|Result):", head(name)
    )
    flags = dict(re.findall(r"--(\w+)=([^\s,]+)", line[1] if line else ""))
    for study in sweep_of(name).studies:
        arguments = dict(study.workload.dataset_arguments)
        if study.workload.dataset in MADE_UP:
            continue
        assert flags["dataset"] == study.workload.dataset
        assert flags["data_dir"] == "P"
        if "vocabulary" in arguments:
            # Behind the flags that are left out stand those of the command.
            found = int(flags.get("vocabulary", 32_000)), int(flags.get("length", 64))
            assert found == (arguments["vocabulary"], arguments["length"])
        if "folder" in arguments:
            assert flags["raw_dir"] == arguments["folder"]


@pytest.mark.parametrize("name", NAMES)
def test_file_gives_a_sweep_whose_names_are_known(name: str) -> None:
    sweep, text = read(name)
    Backends(Options("unused"), LocalFiles()).check(sweep)
    # What a dry run prints, but for the data.
    told = configurations.describe(sweep, text)
    assert f"cells: {len(sweep.studies)}\n" in told
    assert all(study.cell.name in told for study in sweep.studies)
    for study in sweep.studies:
        again = StudySpecification.from_json(study.to_json())
        assert again.fingerprint == study.fingerprint


def included(name: str) -> set[str]:
    """Returns a file and all that it includes, directly or not."""
    text = configurations.resolve(name).read_text()
    others = re.findall(r"^include '(.*)\.gin'$", text, re.MULTILINE)
    return {name}.union(*(included(other) for other in others))


def test_every_sweep_has_a_tiny_version() -> None:
    # Those of the catalogue have a test of their own, on data of their true shapes.
    tiny = set(CATALOGUE).union(*(included(name) for name in SMOKE))
    assert set(NAMES) == tiny


def test_seven_files_say_what_they_assume() -> None:
    assumed = [
        name
        for name in NAMES
        if re.fullmatch(r"lee2021/\w+_(sgd|momentum|nesterov)", name)
        and "Source: assumed" in re.sub(" +", " ", head(name))
    ]
    assert len(assumed) == 7


def parts(study: StudySpecification) -> set[tuple[str, str]]:
    """Returns what the program of a cell is made of."""
    cell, workload = study.cell, study.workload
    named = {
        "network": [workload.network, *workload.network_arguments],
        "dataset": [workload.dataset],
        "objective": [workload.objective],
        "schedule": [workload.learning_rate_schedule],
        "optimizer": [workload.optimizer],
        "places": [*workload.space.to_json(), *workload.fixed],
        "axes": [place for place, _ in cell.axes],
        # Where nothing is pruned networks are the same.
        "method": [cell.sparsity_method if cell.sparsity else "dense"],
    }
    return {(kind, name) for kind, names in named.items() for name in names}


@functools.cache
def smoke() -> dict[str, list[StudySpecification]]:
    """Returns the cells of the tiny files that have a part no cell before has.

    Dense ones only where nothing is pruned.
    """
    seen: set[tuple[str, str]] = set()
    cells: dict[str, list[StudySpecification]] = {}
    for name in sorted(SMOKE, key=lambda name: (name in QUICK, name), reverse=True):
        studies = sweep_of(name).studies
        pruned = any(study.cell.sparsity for study in studies)
        for study in reversed(studies):
            if (study.cell.sparsity or not pruned) and not parts(study) <= seen:
                seen |= parts(study)
                cells.setdefault(name, []).append(study)
    return cells


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in smoke()
    ],
)
def test_tiny_sweep_runs_to_its_end(name: str, tmp_path: Path) -> None:
    sweep = SweepSpecification(tuple(smoke()[name]))
    launched(tmp_path / "sweep", sweep)
    tables = SweepReader(LocalFiles(), str(tmp_path / "sweep")).tables()
    assert not tables.problems
    assert tables.studies["closed"].all()
    assert len(tables.studies) == len(sweep.studies)
    assert set(tables.trials["outcome"]) <= set(OUTCOMES) - {"failed"}
    assert len(tables.curves) > 0


def test_reproduction_binds_two_optimizers_and_runs_from_cheap_to_dear() -> None:
    studies = sweep_of("lee2021/mnist_reproduction").studies
    blocks = {(s.cell.sparsity, s.cell.optimizer): s.workload.points for s in studies}
    assert list(blocks.items()) == [
        ((0.0, "sgd"), 16),
        ((0.0, "nesterov"), 48),
        ((0.9, "sgd"), 16),
        ((0.9, "nesterov"), 48),
    ]
    assert [s.cell.batch_size for s in studies] == [4, 8, 16, 32, 64, 128, 256] * 4
    # What one optimizer is given in a scope of its own is no other study for it.
    alone = {s.cell: s for s in sweep_of("lee2021/mnist_sgd_sparsity").studies}
    shared = [s for s in studies if s.cell in alone]
    assert len(shared) == 6
    assert all(s.fingerprint == alone[s.cell].fingerprint for s in shared)
    space = sweep_of("lee2021/mnist_nesterov").studies[0].workload.space
    assert all(s.workload.space == space for s in studies[7:14])
