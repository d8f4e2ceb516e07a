"""A section of the report takes a module, which the command is told to import."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd

from tests import interpreter
from tests.analysis import few_sections
from tests.made_up.sweeps import Sweep, write_sweep

MODULE = Path(__file__).with_name("examples_section.py")
SMALL = Sweep(sparsities=(0.0,), batch_sizes=(8, 64, 256), points=4, measured=False)


def test_a_section_is_on_the_page_and_right(tmp_path):
    shutil.copy(MODULE, tmp_path)
    write_sweep(tmp_path / "sweep", SMALL)
    words = ["dps_tf.report", "--import=examples_section", "--sweep_dir=sweep"]
    few = few_sections.command("headline", "table")
    done = interpreter.run([*few, *words], modules=interpreter.TABLES, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "sweep" / "report"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "The cost of a result in examples." in page
    section = page.split('id="examples_seen"')[1].split("</table>")[0]
    shown = [int(text.replace(",", "")) for text in re.findall(r">([\d,]+)<", section)]
    results = pd.read_csv(folder / "results.csv").dropna(subset=["steps_to_result"])
    expected = results[["batch_size", "steps_to_result"]].astype(int)
    expected["examples"] = expected.prod(axis=1)
    assert shown == expected.to_numpy().ravel().tolist()
