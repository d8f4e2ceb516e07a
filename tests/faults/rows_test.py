"""A refused value is named by its row in the file; rows that are empty count too.

Empty cells and lines before the value are generated for each table that users write.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from dps_tf.analysis.fit_table import fit_table, read_table
from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.interchange.run_tables import read_runs
from dps_tf.analysis.interchange.runs import from_rows
from dps_tf.analysis.interchange.sweep import write_runs
from dps_tf.analysis.published import checked_published
from dps_tf.analysis.step_times import checked_step_times
from dps_tf.core import Goal, UserError
from tests.faults.recorded_runs import METRIC, check_sentence

pytestmark = pytest.mark.fault
TRIALS = "trial,workload,optimizer,batch_size,learning_rate\n"


def _trials(path: Path) -> None:
    text = f"trial,step,{METRIC}\n0,10,.5\n"
    (path.parent / "evaluations.csv").write_text(text)
    read_runs(path.rename(path.parent / "trials.csv").parent).by_cell()


def _evaluations(path: Path) -> None:
    (path.parent / "trials.csv").write_text(f"{TRIALS}0,w,sgd,8,0.1\n")
    read_runs(path.rename(path.parent / "evaluations.csv").parent).by_cell()


def _long(path: Path) -> None:
    runs = from_rows(path)
    write_runs(runs, path.parent / "sweep", Goal("validation/error", 0.1))


READERS = {
    "long": _long,
    "fit": lambda path: fit_table(read_table(path)),
    "step_times": lambda path: checked_step_times(read_csv(path)),
    "published": lambda path: checked_published(read_csv(path)),
    "trials": _trials,
    "evaluations": _evaluations,
}
FIT = "curve,batch_size,steps_to_result,noise\n"
TIMES = "batch_size,devices,seconds,price\n"
LONG = "run,batch_size,step,val_error\n"
CASES = [
    # reader, header, row, row with an empty cell or "", wrong row, column
    ("fit", FIT, "{c},{n},9,.1", "{c},{n},,.1", "{c},{n},-5,.1", "steps_to_result"),
    ("fit", FIT, "{c},{n},9,.1", "{c},{n},,", "{c},0,9,.1", "batch_size"),
    ("fit", FIT, "{c},{n},9,.1", "{c},{n},9,", "{c},{n},9,-1", "noise"),
    ("fit", FIT, "{c},{n},9,.1", "{c},{n},,.1", "{c},{n},x,.1", "steps_to_result"),
    ("fit", FIT, "{c},{n},9,.1", "{c},{n},,.1", "{c},{n},9e99,.1", "steps_to_result"),
    ("fit", FIT, "{c},{n},9,.1", "{c},{n},,.1", ",{n},9,.1", "curve"),
    (
        "fit",
        "batch_size,run,steps_to_result\n",
        "{n},0,9",
        "{n},1,",
        "{n},0,-5",
        "steps_to_result",
    ),
    ("step_times", TIMES, "{n},1,.1,2", "", "{n},1,0,2", "seconds"),
    (
        "published",
        "curve,batch_size,steps_to_result,relative_error\n",
        "a,{n},9,.1",
        "a,{n},9,",
        "a,{n},x,.1",
        "steps_to_result",
    ),
    ("trials", TRIALS, "{n},w,sgd,8,.1", "{n},w,sgd,8,", "{n},w,sgd,8,-1", "rate"),
    ("trials", TRIALS, "{n},w,sgd,8,.1", "{n},w,sgd,8,", "1.5,w,sgd,8,1", "trial"),
    ("trials", TRIALS, "{n},w,sgd,8,.1", "{n},w,sgd,8,", ",w,sgd,8,1", "trial"),
    (
        "trials",
        TRIALS.replace("learning_rate", "status"),
        "{n},w,sgd,8,COMPLETE",
        "",
        "{n},w,sgd,8,DONE",
        "status",
    ),
    (
        "trials",
        TRIALS.replace("learning_rate", "sparsity_method"),
        "{n},w,sgd,8,none",
        "",
        "{n},w,sgd,8,",
        "sparsity_method",
    ),
    (
        "evaluations",
        f"trial,step,{METRIC}\n",
        "0,{n},.5",
        "0,{n},",
        "0,2.5,.5",
        "step",
    ),
    ("evaluations", f"trial,step,{METRIC}\n", "0,{n},.5", "0,{n},", "0,,.5", "step"),
    ("evaluations", f"trial,step,{METRIC}\n", "0,{n},.5", "0,{n},", "0,1,x", METRIC),
    ("long", LONG, "a,8,{n},.5", "a,8,{n},", "a,8,1,x", "val_error"),
    ("long", LONG, "{c},8,{n},.5", "{c},8,{n},", '{c},8,"1000",x', "val_error"),
    ("long", LONG, "a,8,{n},.5", "a,8,{n},", "a,8,x,.5", "step"),
    ("long", LONG, "a,8,{n},.5", "a,8,{n},", "a,8,2.5,.5", "step"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[-1]}")
@pytest.mark.parametrize("seed", range(4))
def test_a_refusal_names_the_row_of_the_file(tmp_path, case, seed):
    reader, header, good, empty, wrong, column = case
    random = np.random.default_rng(seed)
    kinds = [
        good,
        good,
        *([empty] if empty else [""]),
        *random.choice([good, empty, ""], 4),
    ]
    random.shuffle(kinds)
    rows = [*kinds, wrong, good]
    text = header + "".join(
        f"{row.format(n=2**n, c='ab'[n % 2])}\n" for n, row in enumerate(rows)
    )
    path = tmp_path / "given.csv"
    path.write_text(text)
    # Its truth is counted by another program.
    last = wrong.format(n=2**7, c="b")
    counted = subprocess.run(
        ["grep", "-n", "-x", "-F", "--", last, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    row = int(counted.stdout.split(":")[0]) - 1
    with pytest.raises(UserError, match=rf"{column}.* row {row}\b") as refusal:
        READERS[reader](path)
    check_sentence(refusal.value)
