"""Cautions: what may be wrong with a number of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from dps_tf.analysis.law import DOUBTFUL, FEW_POINTS, MISFIT, misfits
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report.content import Caution, ReportContext
from dps_tf.analysis.report.curves import cell_names
from dps_tf.analysis.tables import belongs, cell_name, ends_of, study_key
from dps_tf.analysis.wording import and_list, count, percent
from dps_tf.store import shortfall

COARSE = 0.1
"""An evaluation interval of a tenth of K*: 0.14 octaves, the size of the scatter of
published K* about their fits."""
MOSTLY_INFEASIBLE = 0.7
"""Share of trials, exceeded only by the widest of the published searches (6 to 89 %,
mostly below 60 %): few trials are left that can find a minimum."""
MOSTLY_ALONE = 0.5
"""Share of the cells: with more lone winners, the caution is about the whole search."""
MET_AT_ONCE = 0.5
"""Share of trials that met the goal at their first evaluation."""
_SPARSITY_SLACK = 0.005
_FEW_SHORT = 3
"""Most cells without K* for which the page says how near they came."""


def caution_text(caution: Caution) -> str:
    """Returns the title of a caution with the number of cells or curves concerned.

    >>> caution_text(Caution("Study still open", "", ("a", "b")))
    'Study still open (2 cells)'
    """
    if not caution.cells:
        return caution.title
    return f"{caution.title} ({count(len(caution.cells), caution.unit)})"


def cautions(context: ReportContext) -> tuple[Caution, ...]:
    """Returns all cautions that apply; notes, which change no result, come last."""
    cells = _cells(context)
    warned = [caution for found in _KINDS for caution in found(context, cells)]
    return tuple(sorted(warned, key=lambda caution: caution.is_note))


def _cells(context: ReportContext) -> pd.DataFrame:
    """Returns the named cells with what was asked of each, and its name."""
    studies = context.tables.studies
    names = study_key(studies)
    asked = studies[[*names, "points", "prunable", "count", "oracle"]]
    cells = context.curves.cells.merge(asked, on=names)
    return cells.assign(name=cell_names(cells))


def _not_begun(context: ReportContext, _: pd.DataFrame) -> Iterator[Caution]:
    """Yields a caution on the planned cells that have not begun."""
    sweeps = context.tables.sweeps
    names = tuple(name for sweep in sweeps for name in sweep.not_begun)
    text = "These cells have no trial yet: no figure or table shows them."
    if names:
        yield Caution("Cells that have not begun", text, names)


def _damaged(context: ReportContext, _: pd.DataFrame) -> Iterator[Caution]:
    if problems := context.tables.problems:
        text = "Damaged files were skipped, so that results may lack trials: "
        yield Caution("Damaged files", text + " ".join(problems))


def _for_cells(title: str, text: str, cells: pd.DataFrame) -> Iterator[Caution]:
    if len(cells):
        yield Caution(title, text, tuple(cells["name"]))


def _for_curves(title: str, text: str, curves: Sequence[str]) -> Iterator[Caution]:
    if curves:
        yield Caution(title, text, tuple(curves), unit="curve")


def _how_near(tables: Tables) -> str:
    """Returns how near the first cells without K* came to the goal, with advice."""
    sentences: list[str] = []
    results = zip(tables.results["steps_to_result"].isna(), tables.goals, strict=True)
    for place, (is_missing, goal) in enumerate(results):
        study = tables.studies.iloc[[place]]
        if not (is_missing and study["closed"].iloc[0]) or len(sentences) == _FEW_SHORT:
            continue
        trials = tables.bounded[belongs(tables.bounded, study)]
        curves = tables.curves[belongs(tables.curves, study)]
        short = shortfall(goal, study.iloc[0].to_dict(), trials, curves)
        if short is not None:
            name = cell_name(study.iloc[0].to_dict())
            sentences.append(f"{name}: {short.best}. {short.advice}")
        elif not (trials["outcome"] == "failed").all():
            name = cell_name(study.iloc[0].to_dict())
            sentences.append(f"{name}: no trial has a finite value of {goal.metric}.")
    return " ".join(sentences)


def _results(context: ReportContext, cells: pd.DataFrame) -> Iterator[Caution]:
    """Yields cautions on open studies, missed goals, bounds and failed trials."""
    tables, trials = context.tables, context.tables.trials
    yield from _for_cells(
        "Study still open",
        "Not all of its trials are decided: K* may still fall.",
        cells[~cells["closed"]],
    )
    missing = cells["steps_to_result"].isna()
    yield from _for_cells(
        "Goal not reached",
        f"No trial is known to have met the goal. {_how_near(tables)}".strip(),
        cells[missing & cells["closed"]],
    )
    bounded = cells[~missing & (cells["steps_bound"] != "")]
    yield from _for_cells(
        "K* is only bounded",
        "Trials were stopped before they could answer this goal: K* lies between the "
        f"bounds given. {_stopped(bounded, tables.bounded)}".strip(),
        bounded,
    )
    yield from _for_cells(
        "Failed trials",
        "While a trial that the study needed has failed, K* is an upper bound. Run the "
        f"command again to try it anew. The first error: {first_error(trials)}.",
        cells[cells["failed"] > 0],
    )
    yield from _for_cells(
        "Draws exhausted",
        "The limit on draws was met before enough feasible trials were found.",
        cells[cells["draws_exhausted"]],
    )


def _stopped(cells: pd.DataFrame, trials: pd.DataFrame) -> str:
    """Returns which trials of the first cells were stopped, and where."""
    sentences = []
    for place in range(min(len(cells), _FEW_SHORT)):
        own = trials[belongs(trials, cells.iloc[[place]])]
        early = own[own["earliest"] < own["latest"].min()]
        if len(early):
            sentences.append(f"{cells['name'].iloc[place]}: {ends_of(early)}.")
    return " ".join(sentences)


def first_error(trials: pd.DataFrame) -> str:
    """Returns the first line of the first error that a trial failed with."""
    errors = trials.loc[trials["outcome"] == "failed", "error"].dropna()
    lines = [str(error).strip().splitlines() for error in errors]
    return next((text[0].rstrip(".") for text in lines if text), "not recorded")


def _search(_: ReportContext, cells: pd.DataFrame) -> Iterator[Caution]:
    """Yields cautions on cells whose K* may not be the minimum of the space."""
    at_end = cells[cells["at_boundary"] != ""]
    names = sorted({n for text in at_end["at_boundary"] for n in text.split(",")})
    yield from _for_cells(
        f"Best {and_list(names)} at the boundary",
        "The best value lies within 5 % of an end of its range, on its scale, or is "
        "the last that was tried: a wider range may give a smaller K*. In fits and "
        "figures such a K* is an upper bound.",
        at_end,
    )
    steps, interval = cells["steps_to_result"], cells["evaluation_interval"]
    at_once = (steps <= interval).fillna(False) | (
        cells["first_evaluation"] >= MET_AT_ONCE
    )
    yield from _for_cells(
        "The goal is met at the first evaluation",
        "K* is the first evaluation, or half of all trials met the goal there: an "
        "untrained network might meet it too. Choose a stricter goal, or evaluate "
        "earlier.",
        cells[at_once & ((interval > 0) | (steps == 0).fillna(False))],
    )
    yield from _alone(cells)
    yield from _for_cells(
        "Coarse evaluation",
        "The evaluation interval is at least a tenth of K*: the grid of evaluations, "
        "not the training, sets its last digits. Evaluate more often at these sizes.",
        cells[cells["interval_over_kstar"] >= COARSE],
    )
    yield from _for_cells(
        "Most trials diverged",
        f"More than {percent(MOSTLY_INFEASIBLE)} of the trials were infeasible: few "
        "were left to find the minimum.",
        cells[cells["infeasible_share"] > MOSTLY_INFEASIBLE],
    )


def _alone(cells: pd.DataFrame) -> Iterator[Caution]:
    """Yields a caution on lone winners, or on the whole search if most are alone."""
    alone = cells[cells["lone_winner"].fillna(False)]
    far = (
        "K_(2), the second best trial, needed more than 10 % and more than one "
        "evaluation interval longer than K*"
    )
    if len(alone) <= MOSTLY_ALONE * len(cells) or len(cells) == 1:
        yield from _for_cells(
            "The winner is alone",
            f"{far}: a single trial came near the minimum, and more trials may lower "
            "it further. The table best_of_n.csv has the K* of fewer trials.",
            alone,
        )
        return
    # The cause is the whole search: points lie further apart than good ones do.
    yield Caution(
        "A coarse search",
        f"In {len(alone)} of {len(cells)} cells {far}: the points lie so far apart "
        "that one alone comes near the best place. K* is the best of these points and "
        "not of the space; more points, or a narrower range, may lower it, and change "
        "the shape of a curve.",
    )


def _laws(context: ReportContext, _: pd.DataFrame) -> Iterator[Caution]:
    """Yields cautions on curves that c1/B + c2 fits badly, or of few batch sizes."""
    curves = context.curves
    fits = {curves.title(key): fit for key, fit in curves.fits.items()}
    wrong = {name: misfits(fit) for name, fit in fits.items()}
    for kind, title, text in (
        (
            "far",
            "K* far from its fit",
            f"A K* lies {MISFIT:g} octaves or more from c1/B + c2: the law or that K* "
            "is wrong there, and c1 and c2 with it.",
        ),
        (
            "rise",
            "K* rises with the batch size",
            f"By {MISFIT:g} octaves or more, which c1/B + c2 cannot: the curve has "
            "another form, and c1 and c2 mean nothing.",
        ),
        (
            "exponent",
            "The exponent may not be 1",
            "The interval of a in c1/B^a + c2 excludes 1, or a is estimated below "
            f"{DOUBTFUL:g}. The table of fits has the critical batch size averaged "
            "over a.",
        ),
    ):
        yield from _for_curves(title, text, [n for n in fits if kind in wrong[n]])
    yield from _for_curves(
        f"Fewer than {FEW_POINTS} batch sizes",
        "The prior decides how far the intervals of c1 and c2 reach.",
        [name for name, fit in fits.items() if fit.is_short],
    )


def _unequal(_: ReportContext, cells: pd.DataFrame) -> Iterator[Caution]:
    """Yields cautions on unequal numbers of trials, and on a single study seed."""
    for panel, group in cells.groupby("panel", sort=False):
        closed = group[group["closed"]]
        feasible = closed["count"].eq("feasible")
        effort = closed["trials"].where(~feasible, closed["points"])
        if effort.nunique() > 1:
            efforts = and_list([str(n) for n in sorted(effort.unique())])
            yield Caution(
                "Unequal numbers of trials",
                f"Studies of {panel} rest on {efforts} trials. A minimum falls with "
                "the number of trials, so compare such cells with care; a space of "
                "more dimensions needs more trials for an equally good best.",
            )
    if len(cells) and cells["seed"].nunique() == 1:
        yield Caution(
            "One study per cell",
            "No study was repeated under another seed. The noise of K* beside the "
            "fits is estimated from the first trials that met the goal.",
            is_note=True,
        )


def _pruning(context: ReportContext, cells: pd.DataFrame) -> Iterator[Caution]:
    """Yields cautions on removed biases, a missed sparsity and emptied layers."""
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
    trials = context.tables.trials
    names = study_key(trials)
    realised = trials.groupby(names, sort=False)["realised_sparsity"].mean()
    both = cells.join(realised.rename("realised"), on=names)
    far = (both["realised"] - both["sparsity"]).abs() > _SPARSITY_SLACK
    yield from _for_cells(
        "Sparsity is not the one asked for",
        "The realised zero fraction of the prunable parameters differs by more than "
        f"{_SPARSITY_SLACK:g}.",
        both[far & (both["sparsity"] > 0)],
    )
    emptied = cells[cells["emptied_layers"].fillna("") != ""]
    texts = emptied["emptied_layers"]
    layers = sorted({name for text in texts for name in text.split(", ")})
    yield from _for_cells(
        f"Emptied {count(len(layers), 'layer')}",
        f"The best trial's network keeps nothing in {and_list(layers)}.",
        emptied,
    )


_KINDS = (_not_begun, _damaged, _results, _search, _unequal, _laws, _pruning)
"""What yields cautions, in the order of the page."""
