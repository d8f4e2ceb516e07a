"""A report in sentences: what curves say, and what to know before trusting a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from dps_tf.analysis.law import FEW_POINTS, LawFit, prefers_power_law
from dps_tf.analysis.loading import SweepRecord, Tables
from dps_tf.analysis.report.content import Caution, ReportContext
from dps_tf.analysis.report.curves import Curves, comparable, groups, of_curve
from dps_tf.analysis.report.law import Forms
from dps_tf.analysis.report.naming import cell_names
from dps_tf.analysis.tables import belongs, cell_name, study_key
from dps_tf.analysis.wording import and_list, count, interval, number, percent, steps
from dps_tf.store import shortfall

COARSE = 0.1
"""An evaluation interval of a tenth of K*: 0.14 octaves, the size of the scatter of
published K* about their fits."""
MOSTLY_INFEASIBLE = 0.7
"""More than in any but the widest of the published searches (6 to 89 %, mostly below
60 %): few trials are left that can find a minimum."""
MOSTLY_ALONE = 0.5
"""Share of the cells: a winner that is alone in more of them is the search's doing."""
MISFIT = 0.5
"""Octaves: more than twice the scatter of published K* about their fits."""
MET_AT_ONCE = 0.5
"""Share of trials that met the goal at the first evaluation of all."""
_SPARSITY_SLACK = 0.005
_FEW_SHORT = 3
"""Cells without K* of which the page says how near they came."""


def summary(curves: Curves, regimes: pd.DataFrame) -> tuple[str, ...]:
    """Returns a sentence or three per curve, then how curves compare."""
    found = []
    for panel, curve, cells in groups(curves):
        plot_rows = of_curve(curves.exact, panel, curve)
        parts = [_range(curves.title(panel, curve), plot_rows, cells)]
        fit = curves.fits.get((panel, curve))
        if fit is not None:
            parts.append(_law(fit))
        mine = of_curve(regimes, panel, curve)
        if len(mine):
            parts.append(_regimes(mine.iloc[0]))
        found.append(" ".join(parts))
    return (*found, *_comparisons(curves))


def _range(name: str, plot_rows: pd.DataFrame, cells: pd.DataFrame) -> str:
    missing = int(cells["steps_to_result"].isna().sum())
    end = f" {count(missing, 'batch size')} without a K*." if missing else ""
    if plot_rows.empty:
        return f"{name}: no K* is known exactly.{end}"
    plot_rows = plot_rows.sort_values("batch_size")
    first, last = plot_rows.iloc[0], plot_rows.iloc[-1]
    start = (
        f"{name}: {steps(first['steps_to_result'])} steps to result at batch size "
        f"{first['batch_size']:,}"
    )
    if len(plot_rows) == 1:
        return f"{start}.{end}"
    batch = last["batch_size"] / first["batch_size"]
    fewer = first["steps_to_result"] / last["steps_to_result"]
    change = (
        f"{number(fewer)} times fewer steps"
        if fewer >= 1
        else f"{number(1 / fewer)} times more steps"
    )
    return (
        f"{start}, {steps(last['steps_to_result'])} at {last['batch_size']:,}: "
        f"{_whole(batch)} times the batch, {change}.{end}"
    )


def _whole(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else number(value)


def _law(fit: LawFit) -> str:
    critical = fit.critical_batch_size
    text = f"The fit is K* = {number(fit.c1.value)}/B + {number(fit.c2.value)}"
    if not fit.plateau_resolved:
        return f"{text}; no plateau is resolved: " + (
            f"c1/c2 is {interval(critical.low, critical.high)}."
            if critical.low > 0
            else "these K* do not bound c1/c2."
        )
    if not fit.slope_resolved:
        return f"{text}; the curve is flat within its scatter."
    return (
        f"{text}, with the critical batch size c1/c2 at {number(critical.value)} "
        f"({interval(critical.low, critical.high)})."
    )


def _regimes(row: pd.Series) -> str:
    seen = f"up to {row['points_perfect']:g}"
    if pd.notna(row["points_useful"]):
        seen += f" and from {row['points_useful']:g}"
    within = f"Within {percent(row['tolerance'])},"
    if row["perfect_end_low"] == 0 and np.isinf(row["perfect_end_high"]):
        return f"{within} the fit tells no ends of regimes; by single points, {seen}."
    perfect, useful = (
        f"{number(row[name])} ({interval(row[f'{name}_low'], row[f'{name}_high'])})"
        for name in ("perfect_end", "useful_end")
    )
    flat = (
        f"the curve is flat from {useful}"
        if row["is_flat"]
        else f"the curve is not seen to become flat up to {row['largest']:g}"
    )
    return (
        f"{within} perfect scaling holds up to batch size {perfect} and {flat}, by the "
        f"fit; by single points, {seen}."
    )


def _comparisons(curves: Curves) -> list[str]:
    """Returns how curves lie beside the first of their workload, at equal batches."""
    found = []
    together = comparable(curves)
    for name, pairs in together.items():
        steps_of = {
            _within(name, curves.title(panel, curve)): of_curve(
                curves.exact, panel, curve
            ).set_index("batch_size")["steps_to_result"]
            for panel, curve in pairs
        }
        reference, *others = steps_of
        told = []
        for curve in others:
            ratios = (steps_of[curve] / steps_of[reference]).dropna().to_numpy(float)
            if len(ratios):
                told.append(f"{_times(ratios)} for {curve}")
        if told:
            start = f"{name}: " if len(together) > 1 else ""
            found.append(
                f"{start}Steps at equal batch size, relative to {reference}: "
                f"{'; '.join(told)}. {curves.best_of(pairs)}".rstrip()
            )
    return found


def _within(workload: str, name: str) -> str:
    """Returns the name of a curve without that of its workload."""
    return name.removeprefix(f"{workload}, ").removeprefix(f"{workload}: ")


def _times(ratios: np.ndarray) -> str:
    low, high = float(ratios.min()), float(ratios.max())
    if number(low, 2) == number(high, 2):
        return f"{number(low, 2)} times"
    return f"{number(low, 2)} to {number(high, 2)} times"


def cautions(context: ReportContext) -> tuple[Caution, ...]:
    """Returns all that apply, those that may change a result first, notes last."""
    curves, tables = context.curves, context.tables
    studies, trials = tables.studies, tables.trials
    names = study_key(studies)
    asked = studies[[*names, "points", "prunable", "count", "oracle"]]
    cells = curves.cells.merge(asked, on=names)
    cells["name"] = cell_names(cells)
    found = [*_not_begun(tables.sweeps), *_damaged(tables.problems)]
    found += [*_results(cells, tables), *_search(cells), *_unequal(cells)]
    found += [*_laws(curves, context.forms), *_pruning(cells, trials)]
    return tuple(sorted(found, key=lambda caution: caution.is_note))


def _not_begun(sweeps: Sequence[SweepRecord]) -> Iterator[Caution]:
    """Yields the cells that a sweep was asked for and that nobody has begun."""
    names = tuple(name for sweep in sweeps for name in sweep.not_begun)
    text = "Nothing is known of them, and no figure or table shows them."
    if names:
        yield Caution("Cells that have not begun", text, names)


def _damaged(problems: Sequence[str]) -> Iterator[Caution]:
    if problems:
        text = "They were skipped; results may rest on less than was run: "
        yield Caution("Damaged files", text + " ".join(problems))


def _about(title: str, text: str, cells: pd.DataFrame) -> Iterator[Caution]:
    if len(cells):
        yield Caution(title, text, tuple(cells["name"]))


def _about_curves(title: str, text: str, curves: Sequence[str]) -> Iterator[Caution]:
    if curves:
        yield Caution(title, text, tuple(curves), unit="curve")


def _how_near(tables: Tables) -> str:
    """Returns for the first cells without K* how near they came, and what to change."""
    told: list[str] = []
    results = zip(tables.results["steps_to_result"].isna(), tables.goals, strict=True)
    for place, (is_missing, goal) in enumerate(results):
        study = tables.studies.iloc[[place]]
        if not (is_missing and study["closed"].iloc[0]) or len(told) == _FEW_SHORT:
            continue
        trials = tables.bounded[belongs(tables.bounded, study)]
        curves = tables.curves[belongs(tables.curves, study)]
        found = shortfall(goal, study.iloc[0].to_dict(), trials, curves)
        if found is not None:
            name = cell_name(study.iloc[0].to_dict())
            told.append(f"{name}: {found.best}. {found.advice}")
    return " ".join(told)


def _results(cells: pd.DataFrame, tables: Tables) -> Iterator[Caution]:
    """Yields what is missing from results."""
    trials = tables.trials
    yield from _about(
        "Study still open",
        "Not all of its trials are decided: K* may still fall.",
        cells[~cells["closed"]],
    )
    missing = cells["steps_to_result"].isna()
    yield from _about(
        "Goal not reached",
        f"No trial is known to have met the goal. {_how_near(tables)}".strip(),
        cells[missing & cells["closed"]],
    )
    yield from _about(
        "K* is only bounded",
        "Trials were stopped before they could answer this goal: K* lies between the "
        "bounds given.",
        cells[~missing & (cells["steps_bound"] != "")],
    )
    yield from _about(
        "Failed trials",
        "While a trial that the study needed has failed, K* is an upper bound. Run the "
        f"command again to try it anew. The first error: {first_error(trials)}.",
        cells[cells["failed"] > 0],
    )
    yield from _about(
        "Draws exhausted",
        "The limit on draws was met before enough feasible trials were found.",
        cells[cells["draws_exhausted"]],
    )


def first_error(trials: pd.DataFrame) -> str:
    """Returns the first line of the first error that a trial failed with."""
    errors = trials.loc[trials["outcome"] == "failed", "error"].dropna()
    lines = [str(error).strip().splitlines() for error in errors]
    return next((found[0].rstrip(".") for found in lines if found), "not recorded")


def _search(cells: pd.DataFrame) -> Iterator[Caution]:
    """Yields where K* may not be the minimum that was looked for."""
    at_end = cells[cells["at_boundary"] != ""]
    names = sorted({n for text in at_end["at_boundary"] for n in text.split(",")})
    yield from _about(
        f"Best {and_list(names)} at the boundary",
        "The best value lies within 5 % of an end of its range, on its scale: a wider "
        "range may give a smaller K*. In fits such a K* counts as an upper bound.",
        at_end,
    )
    steps, interval = cells["steps_to_result"], cells["evaluation_interval"]
    at_once = (steps <= interval).fillna(False) | (
        cells["first_evaluation"] >= MET_AT_ONCE
    )
    yield from _about(
        "The goal is met at the first evaluation",
        "K* is the first evaluation, or half of all trials met the goal there: an "
        "untrained network might meet it too. Choose a stricter goal, or evaluate "
        "earlier.",
        cells[at_once & (interval > 0)],
    )
    yield from _alone(cells)
    yield from _about(
        "Coarse evaluation",
        "The evaluation interval is at least a tenth of K*: the grid of evaluations, "
        "not the training, sets its last digits. Evaluate more often at these sizes.",
        cells[cells["interval_over_kstar"] >= COARSE],
    )
    yield from _about(
        "Most trials diverged",
        f"More than {percent(MOSTLY_INFEASIBLE)} of the trials were infeasible: few "
        "were left to find the minimum.",
        cells[cells["infeasible_share"] > MOSTLY_INFEASIBLE],
    )


def _alone(cells: pd.DataFrame) -> Iterator[Caution]:
    """Yields where the second best trial is far behind: of cells, or of the search."""
    alone = cells[cells["lone_winner"].fillna(False)]
    far = (
        "K_(2), the second best trial, needed more than 10 % and more than one "
        "evaluation interval longer than K*"
    )
    if len(alone) <= MOSTLY_ALONE * len(cells) or len(cells) == 1:
        yield from _about(
            "The winner is alone",
            f"{far}: the minimum was found once, and more trials may lower it further. "
            "The table of sensitivities has K* of the first half of the trials.",
            alone,
        )
        return
    # It is not about single cells: points lie further apart than good ones do.
    yield Caution(
        "A coarse search",
        f"In {len(alone)} of {len(cells)} cells {far}: the points lie so far apart "
        "that one alone comes near the best place. K* is the best of these points and "
        "not of the space; more points, or a narrower range, may lower it, and change "
        "the shape of a curve.",
    )


def _laws(curves: Curves, forms: Forms) -> Iterator[Caution]:
    """Yields where c1/B + c2 is not what the points say, or little but a prior."""
    fits = {curves.title(*pair): fit for pair, fit in curves.fits.items()}
    yield from _about_curves(
        "K* far from its fit",
        f"A K* lies {MISFIT:g} octaves or more from c1/B + c2: the law or that K* "
        "is wrong there, and c1 and c2 with it.",
        [n for n, fit in fits.items() if np.nanmax(np.abs(fit.residuals)) >= MISFIT],
    )
    yield from _about_curves(
        "A power law is preferred",
        "c/B^a + d has the lower AICc: c1, c2 and c1/c2 are those of a form that "
        "fits worse. The table of alternatives has the critical batch size under "
        "both, and averaged.",
        [curves.title(*pair) for pair, of in forms.items() if prefers_power_law(of)],
    )
    yield from _about_curves(
        f"Fewer than {FEW_POINTS} batch sizes",
        "The prior decides how far the intervals of c1 and c2 reach.",
        [name for name, fit in fits.items() if fit.is_short],
    )


def _unequal(cells: pd.DataFrame) -> Iterator[Caution]:
    """Yields what makes cells unequal."""
    for panel, mine in cells.groupby("panel", sort=False):
        closed = mine[mine["closed"]]
        feasible = closed["count"].eq("feasible")
        effort = closed["trials"].where(~feasible, closed["points"])
        if effort.nunique() > 1:
            told = and_list([str(n) for n in sorted(effort.unique())])
            yield Caution(
                "Unequal numbers of trials",
                f"Studies of {panel} rest on {told} trials. A minimum falls with the "
                "number of trials, so compare such cells with care; a space of more "
                "dimensions needs more trials for an equally good best.",
            )
    if len(cells) and cells["seed"].nunique() == 1:
        yield Caution(
            "One study per cell",
            "Nothing was repeated under other seeds: the scatter of K* from search to "
            "search is only known through the residuals of the fit.",
            is_note=True,
        )


def _pruning(cells: pd.DataFrame, trials: pd.DataFrame) -> Iterator[Caution]:
    """Yields what pruning did beside removing weights."""
    biases = cells[
        (cells["sparsity"] > 0) & (cells["prunable"] == "kernels_and_biases")
    ]
    if len(biases):
        yield Caution(
            "Pruned networks without biases",
            "Kernels and biases are ranked together, as in Lee et al. 2021. Scores of "
            "biases that start at zero are zero, so they are removed first and held at "
            "zero: at these sparsities the pruned networks train without biases, the "
            "dense one with them.",
            is_note=True,
        )
    names = study_key(trials)
    realised = trials.groupby(names, sort=False)["realised_sparsity"].mean()
    both = cells.join(realised.rename("realised"), on=names)
    far = (both["realised"] - both["sparsity"]).abs() > _SPARSITY_SLACK
    yield from _about(
        "Sparsity is not the one asked for",
        "The realised zero fraction of the prunable parameters differs by more than "
        f"{_SPARSITY_SLACK:g}.",
        both[far & (both["sparsity"] > 0)],
    )
    emptied = cells[cells["emptied_layers"].fillna("") != ""]
    texts = emptied["emptied_layers"]
    layers = sorted({name for text in texts for name in text.split(", ")})
    yield from _about(
        f"Emptied {count(len(layers), 'layer')}",
        f"The best trial's network keeps nothing in {and_list(layers)}.",
        emptied,
    )
