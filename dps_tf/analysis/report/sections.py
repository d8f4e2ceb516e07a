"""The sections of the page, each from its figures and tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from dps_tf.analysis.law import JointFit
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report import law_tables, learning_rates
from dps_tf.analysis.report.best_of_n import best_of_n_figures
from dps_tf.analysis.report.budgets import best_values, budget_figures, budget_table
from dps_tf.analysis.report.content import Illustration, PageTable, Section
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.headline import headline
from dps_tf.analysis.report.health import health_figures, health_table
from dps_tf.analysis.report.layers import layer_figures
from dps_tf.analysis.report.metaparameters import metaparameter_figures
from dps_tf.analysis.report.noise import noise_figures
from dps_tf.analysis.report.normalized import normalized_figures
from dps_tf.analysis.report.regime_table import regime_page_table
from dps_tf.analysis.report.results_table import results_page_table
from dps_tf.analysis.report.smoothness import smoothness_figures, smoothness_table
from dps_tf.analysis.report.training_curves import training_curve_figures
from dps_tf.analysis.report.wording import percent
from dps_tf.analysis.tables import STUDY_KEY


def headline_section(tables: Tables, curves: Curves, regimes: pd.DataFrame) -> Section:
    """Returns the headline figure; of a single cell its training curve comes first."""
    figure = headline(curves, regimes)
    if len(curves.cells) > 1:
        return Section("headline", "K* against batch size", (), (figure,))
    training = _training_curves(tables, curves)
    return Section("headline", "The training curve", (), (*training, figure))


def _training_curves(tables: Tables, curves: Curves) -> list[Illustration]:
    keys = tables.studies[STUDY_KEY].itertuples(index=False, name=None)
    goals = dict(zip(keys, tables.goals, strict=True))
    return training_curve_figures(curves, goals, tables.curves)


def results_section(curves: Curves) -> Section:
    """Returns the table of results."""
    text = (
        "K* is the first evaluated step at which the best trial of a study met the "
        "goal; (a, b] is its bracket: the goal was met after step a, at or before step "
        "b."
    )
    return Section("table", "Results", (text,), (), (results_page_table(curves),))


def law_section(
    curves: Curves, joint: Mapping[str, JointFit], anchor: int | None = None
) -> Section:
    """Returns fits, regimes and shapes; without a fit only what needs none."""
    figures = tuple(normalized_figures(curves))
    title = "The law K* = c1/B + c2"
    if not curves.fits:
        return Section("law", title, (), figures)
    level = next(iter(curves.fits.values())).level
    paragraphs = (
        f"Intervals are {percent(level)} intervals of the posterior, unweighted in log "
        "K*, with each K* known to lie in its bracket; an end that is not stated is "
        "open. c1 counts examples and rules where batches are small, c2 counts steps "
        "and is the plateau; at the critical batch size c1/c2, K* is twice the "
        "plateau.",
        *law_tables.joint_sentences(joint),
    )
    tables: list[PageTable] = [law_tables.fit_table(curves)]
    if joint:
        tables.append(law_tables.joint_table(curves, joint))
    tables += [regime_page_table(curves, anchor), law_tables.alternatives_table(curves)]
    return Section("law", title, paragraphs, figures, tuple(tables))


def training_section(
    tables: Tables, curves: Curves, anchor: int | None = None
) -> Section:
    """Returns where in the space trials did well, and how the best ones trained."""
    rates, rules = learning_rates.rates_of(
        curves, tables.studies, tables.bounded, anchor
    )
    budgets = best_values(tables, curves)
    figures = (
        *metaparameter_figures(curves, tables.bounded),
        *learning_rates.learning_rate_figures(curves, rates, rules),
        *(_training_curves(tables, curves) if len(curves.cells) > 1 else ()),
        *budget_figures(budgets),
    )
    wanted = (learning_rates.rule_table(curves, rules), budget_table(budgets))
    found = tuple(table for table in wanted if table is not None)
    return Section("training", "Metaparameters and training", (), figures, found)


def causes_section(tables: Tables, curves: Curves) -> Section:
    """Returns what was measured of causes."""
    figures = (
        *smoothness_figures(curves, tables.measurements),
        *noise_figures(curves, tables.measurements),
        *layer_figures(curves, tables.trials),
    )
    table = smoothness_table(curves, tables.measurements)
    found = () if table is None else (table,)
    return Section("causes", "Causes", (), figures, found)


def health_section(tables: Tables, curves: Curves) -> Section:
    """Returns how well K* was looked for."""
    figures = (*health_figures(curves), *best_of_n_figures(curves, tables.bounded))
    table = health_table(curves)
    return Section("health", "Health of the search", (), figures, (table,))
