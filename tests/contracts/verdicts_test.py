"""Does every verdict have its record and its command, and are its numbers computed?

That the numbers of the documents are those of the tables is seen in `gin_readme_test`:
there `launch/documents` fills them in again, and nothing changes.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from dps_tf.workloads import reading
from dps_tf.workloads.reading import read_configuration
from tests.launch.dry_runs import dry_run
from tests.packaging.source_tree import SOURCE_TREE

FOLDER = reading.folder()
TRAIN = "python -m dps_tf.train "


def rows() -> pd.DataFrame:
    """Returns the table: claim, found, trials, verdict, command."""
    text = (FOLDER / "README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    names = ["claim", "found", "trials", "verdict", "command"]
    return pd.DataFrame(cells[2:], columns=names)


def quantities() -> ModuleType:
    """Returns docs/quantities.py as a module."""
    path = SOURCE_TREE / "docs" / "quantities.py"
    specification = importlib.util.spec_from_file_location("quantities", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_claim_has_a_verdict_and_measured_ones_their_record():
    table = rows()
    assert len(table) == 20
    for _, found in table.iterrows():
        first = found["verdict"].split(",")[0]
        assert first in ("agrees", "does not", "open"), found["claim"]
        links = re.findall(r"\]\(([^)]+)\)", found["found"])
        assert all((FOLDER / link).is_file() for link in links)
        assert bool(links) == (found["trials"] != "0")
        if first != "open":
            assert links


def test_commands_are_understood(tmp_path):
    commands = {found.strip("`") for found in rows()["command"]}
    assert all(command.startswith(TRAIN) for command in commands)
    trains = sorted(commands)
    words = [shlex.split(c.removeprefix(TRAIN)) for c in trains]
    for line, (code, said) in zip(trains, dry_run(words, tmp_path), strict=True):
        assert code == 0, f"{line}\n{said}"


@pytest.mark.parametrize(
    ("claim", "names"),
    [
        ("Sparse networks need", ["lee2021/mnist_reproduction"]),
        ("c1/B", ["lee2021/mnist_reproduction"]),
        ("square-root rule", ["lee2021/mnist_sgd_sparsity"]),
        ("noise of seeds", ["lee2021/mnist_repeats"]),
        ("late updates", ["parallelism/delay"]),
        (
            "other than momentum",
            ["optimizers/fashion_mnist_fc", "optimizers/text_transformer"],
        ),
    ],
)
def test_numbers_of_trials_are_those_that_the_sweeps_ask_for(claim, names):
    asked = 0
    for sweep in (read_configuration([name], [])[0] for name in names):
        asked += sum(study.workload.points for study in sweep.studies)
        asked += len(sweep.studies) * sweep.repeats * sweep.repeated_points
    (found,) = [row for _, row in rows().iterrows() if claim in row["claim"]]
    assert int(found["trials"]) == asked


@pytest.fixture
def records(tmp_path):
    """Records of one study, two curves that follow the law exactly."""
    sizes = [4, 8, 16, 32, 64, 128, 256, 512]
    table = [
        (curve, size, c1 / size + c2)
        for curve, c1, c2 in (("plain", 64_000, 500), ("better", 64_000, 125))
        for size in sizes
    ]
    names = ["curve", "batch_size", "steps_to_result"]
    pd.DataFrame(table, columns=names).to_csv(tmp_path / "law.csv", index=False)
    errors = [
        ("net", 16, seed, least, test)
        for seed, least, test in ((0, 0.2, 0.3), (0, 0.1, 0.4), (1, 0.3, 0.6))
    ]
    names = ["workload", "batch_size", "seed", "least_validation", "test_at_least"]
    pd.DataFrame(errors, columns=names).to_csv(tmp_path / "errors.csv", index=False)
    return quantities().Records(tmp_path)


def test_quantities_are_those_of_the_law_that_made_the_table(records):
    assert records.end("law", "plain").value == pytest.approx(128, rel=0.02)
    ratio = records.ratio("law", "better", "plain")
    assert ratio.c1.value == pytest.approx(1, rel=0.02)
    assert ratio.c2.value == pytest.approx(0.25, rel=0.02)
    falls = "{{ (k[4] / k[512]) | digits(2) }}"
    k = '{% set k = steps("law", "curve")["plain"] %}'
    assert records.text(k + falls) == f"{(16_000 + 500) / (125 + 500):.2f}"
    # The best trial of seed 0 has the test error 0.4, that of seed 1 has 0.6.
    error = np.std([0.4, 0.6], ddof=1) / np.sqrt(2)
    assert records.best_errors("errors", "net") == [f"0.5000 ± {error:.4f}"]


def test_an_old_number_in_a_sentence_is_replaced_and_a_right_one_stays(records):
    mark = '<!--= steps("law", "curve")["plain"][4] | whole -->'
    text = f"K\\* is {mark}%s<!--/--> steps."
    assert records.with_numbers(text % "12") == text % "16,500"
    assert records.with_numbers(text % "16,500") == text % "16,500"


def test_a_number_has_to_say_how_it_is_shown(records):
    with pytest.raises(TypeError, match="say how many digits"):
        records.text('{{ steps("law", "curve")["plain"][4] }}')


def test_a_verdict_whose_condition_fails_is_not_written(records, tmp_path):
    row = """
    [[verdict]]
    claim = "It falls"
    found = '{{ (steps("law", "curve")["plain"][4] / 4) | digits(1) }}'
    trials = 2
    verdict = "agrees"
    study = "quickstart"
    holds = ['steps("law", "curve")["plain"][4] > %d']
    """
    path = tmp_path / "verdicts.toml"
    path.write_text(row % 16_000)
    (found,) = quantities().verdicts(path, records)
    assert found[:4] == ("It falls", "4125.0", "2", "agrees")
    path.write_text(row % 17_000)
    with pytest.raises(ValueError, match="'It falls'.* > 17000 does not hold"):
        quantities().verdicts(path, records)
