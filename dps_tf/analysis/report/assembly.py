"""A report from the tables of some sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dps_tf.analysis.loading import SweepRecord, Tables
from dps_tf.analysis.report import law_tables, sections
from dps_tf.analysis.report.cautions import cautions, not_begun
from dps_tf.analysis.report.content import Configuration, Report
from dps_tf.analysis.report.curves import curves_of
from dps_tf.analysis.report.naming import naming
from dps_tf.analysis.report.published_curves import published_section
from dps_tf.analysis.report.regime_table import regimes_of
from dps_tf.analysis.report.sentences import summary
from dps_tf.analysis.report.time_and_cost import time_and_cost_section
from dps_tf.analysis.report.wording import and_list, count


@dataclass(frozen=True)
class ReportOptions:
    """What a reader may ask for beside the sweeps themselves.

    Attributes:
        published: names of published curves to lay beside.
        step_times: table of step times, for time and cost.
        anchor: batch size from which rules for the learning rate and linear scaling
            count; the smallest of each curve with a K* if it is None.
    """

    published: Sequence[str] = ()
    step_times: pd.DataFrame | None = None
    anchor: int | None = None


def assemble(tables: Tables, wishes: ReportOptions = ReportOptions()) -> Report:  # noqa: B008 (frozen)
    """Returns the report of some sweeps."""
    curves = curves_of(tables.results, naming(tables.results), tables.studies)
    regimes = regimes_of(curves)
    joint = law_tables.joint_fits(curves)
    found = (
        sections.headline_section(tables, curves, regimes),
        sections.results_section(curves),
        sections.law_section(curves, joint, wishes.anchor),
        published_section(curves, wishes.published),
        time_and_cost_section(curves, wishes.step_times),
        sections.training_section(tables, curves, wishes.anchor),
        sections.causes_section(tables, curves),
        sections.health_section(tables, curves),
    )
    return Report(
        title=_title(tables.results),
        lead=_lead(tables),
        state=_state(tables),
        summary=(
            *summary(curves, regimes),
            *law_tables.effect_sentences(curves, joint),
        ),
        sections=tuple(section for section in found if not section.is_empty),
        cautions=(
            *not_begun(tables.sweeps),
            *cautions(curves, tables.studies, tables.trials, tables.problems),
        ),
        configurations=tuple(_configuration(sweep) for sweep in tables.sweeps),
        results=tables.results,
    )


def published_report(names: Sequence[str]) -> Report:
    """Returns a report of published curves alone."""
    section = published_section(None, names)
    number = len(section.tables[0].frame)
    return Report(
        title="Published steps to result",
        lead=f"{count(number, 'published curve')} and the fits of K* = c1/B + c2.",
        state="",
        summary=(),
        sections=(section,),
        cautions=(),
        configurations=(),
        results=section.tables[0].frame,
    )


def _title(results: pd.DataFrame) -> str:
    return f"Steps to result of {and_list(list(results['workload'].unique()), 3)}"


def _lead(tables: Tables) -> str:
    results = tables.results
    goals = and_list(list(results["goal"].unique()), 3)
    sizes = results["batch_size"]
    trials = int(results["trials"].sum())
    spread = (
        f"batch sizes {sizes.min():,} to {sizes.max():,}"
        if sizes.nunique() > 1
        else f"batch size {sizes.iloc[0]:,}"
    )
    return (
        f"How many training steps the best-tuned run needs to reach {goals}: "
        f"{count(len(results), 'cell')} at {spread}, {count(trials, 'trial')}."
    )


def _state(tables: Tables) -> str:
    """Returns what is missing of a sweep that is not finished, or nothing."""
    still_open = int((~tables.results["closed"]).sum())
    waiting = sum(len(sweep.not_begun) for sweep in tables.sweeps)
    if not still_open + waiting:
        return ""
    parts = []
    if still_open:
        parts.append(
            f"{count(still_open, 'study', 'studies')} of {len(tables.results)} still "
            "open: their K* may fall."
        )
    if waiting:
        have = "has" if waiting == 1 else "have"
        parts.append(f"{count(waiting, 'cell')} {have} not begun.")
    return (
        f"{' '.join(parts)} Run the same command again to continue the sweep, and this "
        "one again afterwards."
    )


def _configuration(sweep: SweepRecord) -> Configuration:
    return Configuration(
        sweep=sweep.directory,
        gin=sweep.gin,
        environments=tuple(
            {str(name): str(value) for name, value in entry.items()}
            for entry in sweep.environments
        ),
    )
