"""A report from the tables of some sweeps."""

from __future__ import annotations

import pandas as pd

from dps_tf.analysis.loading import SweepRecord, Tables
from dps_tf.analysis.report import law_tables
from dps_tf.analysis.report.best_of_n import best_of_n_figures
from dps_tf.analysis.report.cautions import cautions
from dps_tf.analysis.report.content import (
    Configuration,
    PageTable,
    Report,
    Section,
)
from dps_tf.analysis.report.curves import Curves, curves_of
from dps_tf.analysis.report.headline import headline
from dps_tf.analysis.report.health import health_figures, health_table
from dps_tf.analysis.report.layers import layer_figures
from dps_tf.analysis.report.metaparameters import metaparameter_figures
from dps_tf.analysis.report.naming import naming
from dps_tf.analysis.report.noise import noise_figures
from dps_tf.analysis.report.normalized import normalized_figures
from dps_tf.analysis.report.regime_table import (
    regime_page_table,
    regimes_of,
)
from dps_tf.analysis.report.results_table import results_page_table
from dps_tf.analysis.report.sentences import summary
from dps_tf.analysis.report.smoothness import smoothness_figures
from dps_tf.analysis.report.training_curves import training_curve_figures
from dps_tf.analysis.report.wording import and_list, count, percent
from dps_tf.analysis.tables import IDENTITY


def assemble(tables: Tables) -> Report:
    """Returns the report of some sweeps."""
    curves = curves_of(tables.results, naming(tables.results))
    regimes = regimes_of(curves)
    return Report(
        title=_title(tables.results),
        lead=_lead(tables),
        state=_state(tables),
        summary=summary(curves, regimes),
        sections=_sections(tables, curves, regimes),
        cautions=cautions(curves, tables.studies, tables.trials, tables.problems),
        configurations=tuple(_configuration(sweep) for sweep in tables.sweeps),
        results=tables.results,
    )


def _sections(
    tables: Tables, curves: Curves, regimes: pd.DataFrame
) -> tuple[Section, ...]:
    causes = (
        *smoothness_figures(curves, tables.measurements),
        *noise_figures(curves, tables.measurements),
        *layer_figures(curves, tables.trials),
    )
    keys = tables.studies[IDENTITY].itertuples(index=False, name=None)
    goals = dict(zip(keys, tables.goals, strict=True))
    search = (
        *health_figures(curves),
        *best_of_n_figures(curves, tables.bounded),
    )
    points = (
        *metaparameter_figures(curves, tables.bounded),
        *training_curve_figures(curves, goals, tables.curves),
    )
    sections = (
        Section("headline", "K* against batch size", (), (headline(curves, regimes),)),
        Section(
            "table",
            "Results",
            (
                "K* is the first evaluated step at which the best trial of a study met "
                "the goal; (a, b] is its bracket: the goal was met after step a, at or "
                "before step b.",
            ),
            (),
            (results_page_table(curves),),
        ),
        _law(curves),
        Section("points", "Metaparameters and training", (), points),
        Section(
            "causes",
            "Causes",
            (),
            causes,
        ),
        Section("health", "Health of the search", (), search, (health_table(curves),)),
    )
    return tuple(section for section in sections if not section.is_empty)


def _law(curves: Curves) -> Section:
    figures = tuple(normalized_figures(curves))
    title = "The law K* = c1/B + c2"
    if not curves.fits:
        return Section("law", title, (), figures)
    joint = law_tables.joint_fits(curves)
    level = next(iter(curves.fits.values())).level
    paragraphs = (
        f"Intervals are {percent(level)} intervals of the posterior, unweighted in log K*, "
        "with each K* known to lie in its bracket; an end that is not stated is open. "
        "c1 counts examples and rules where batches are small, c2 counts steps and is "
        "the plateau; at the critical batch size c1/c2, K* is twice the plateau.",
        *law_tables.joint_sentences(curves, joint),
    )
    found: list[PageTable] = [law_tables.fit_table(curves)]
    if joint:
        found.append(law_tables.joint_table(curves, joint))
    found += [regime_page_table(curves), law_tables.alternatives_table(curves)]
    return Section("law", title, paragraphs, figures, tuple(found))


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
    if not still_open:
        return ""
    return (
        f"{count(still_open, 'study', 'studies')} of {len(tables.results)} still open: "
        "their K* may fall, and cells that have not begun are not listed. Run the same "
        "command again to continue the sweep, and this one again afterwards."
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
