"""Makes the tables and figures of the atlas from its facts.

    python gin_configs/atlas/atlas.py

reads `facts.csv` (what the runs of each benchmark counted), `benchmarks.csv` (what that
unit is) and the digitized curves of Shallue et al. 2019, and writes `steps.csv` (the
input of `python -m dps_tf.fit --csv`), `fits.csv`, `table.csv` (the same to read),
`comparisons.csv`, `comparisons_text.csv`, `exponent.csv`, `largest.csv`,
`same_lists.csv`, `collapsed.png` and `critical.png`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import dps_tf
from dps_tf.analysis.law import MINIMUM_POINTS, fit_law, holm

HERE = Path(__file__).parent
SHALLUE = HERE.parent / "shallue2019" / "published.csv"
LEFT_OUT = {
    "openfold": "two batch sizes",
    "qwen35_397b_grpo": "every run met the target at its first evaluation",
}
"""Benchmarks without a curve, with the reason."""
ROUNDS = {
    "RNN-T": ("1.1", "3.1"),
    "Stable Diffusion 2": ("4.1", "5.0"),
    "FLUX.1": ("5.1", "6.1"),
    "Llama 3.1 405B": ("5.0", "6.0"),
    "ResNet-50": ("1.0", "4.0"),
    "BERT-large": ("1.1", "5.1"),
}
"""Benchmarks whose owners trained anew between two rounds, at one target."""
OPTIMIZERS = {
    "RetinaNet": "SSD ResNet-34",
    "DLRM DCNv2": "DLRM",
    "cifar_10-resnet_8-nesterov": "cifar_10-resnet_8-sgd",
    "mnist-simple_cnn_base-nesterov": "mnist-simple_cnn_base-sgd",
    "lm1b-transformer_shallow-nesterov": "lm1b-transformer_shallow-sgd",
}
"""Curves with another optimizer; in the first two the network is another one, too."""
MODELS = {
    "Llama 3.1 405B": "Llama 3.1 8B",
    "lm1b-transformer_base-nesterov": "lm1b-transformer_shallow-nesterov",
}
MARGIN, EXPONENT_MARGIN, LEVEL = 1.25, 0.1, 0.95
DIGITIZED = 0.07
"""Octaves: 5 %, the error of reading a figure."""


def facts() -> pd.DataFrame:
    """Returns the facts, with the row of `benchmarks.csv` that holds for each."""
    found = pd.read_csv(
        HERE / "facts.csv", dtype={"first_round": str, "last_round": str}
    )
    units = pd.read_csv(HERE / "benchmarks.csv", dtype=str)
    ends = units["rounds"].str.split("-", expand=True).astype(float)
    units = units.assign(unit_from=ends[0], unit_to=ends[1])
    both = found.merge(units, on="benchmark")
    last = both["last_round"].astype(float)
    both = both[(both["unit_from"] <= last) & (last <= both["unit_to"])]
    assert len(both) == len(found), "each fact has one unit"
    return both.reset_index(drop=True)


def examples_of(row: pd.Series) -> tuple[np.ndarray, float]:
    """Returns the examples of each run of a fact, and between two evaluations."""
    size, unit = row["batch_size"], row["examples_per_unit"]
    if unit == "batch":
        each = size
    elif unit == "padded 168":
        each = math.ceil(168 / size) * size
    else:
        each = float(unit)
    counted = np.array(row["runs"].split(), float) - float(row["offset"])
    return counted * each, row["evaluation_interval"] * each


def same_lists(found: pd.DataFrame) -> pd.DataFrame:
    """Returns lists of runs that stand under two names, or twice with another point.

    Lists in which all runs are equal say nothing, and are left out.
    """
    rows = []
    told = found[found["runs"].map(lambda text: len(set(text.split())) > 2)]
    for _, same in told.groupby(["runs"], sort=False):
        names = same["benchmark"].unique()
        if len(same) > 1:
            rounds = same["first_round"] + " to " + same["last_round"]
            sizes = "; ".join(map(str, same["batch_size"].unique()))
            kinds = same["hyperparameters"].nunique()
            entries = "; ".join(same["benchmark"] + " " + rounds)
            rows.append((", ".join(names), sizes, entries, len(names), kinds))
    names = ["benchmarks", "batch_sizes", "entries", "names", "points"]
    return pd.DataFrame(rows, columns=names)


def steps() -> pd.DataFrame:
    """Returns every run of every curve: the input of `dps_tf.fit`.

    Each benchmark has a curve of the round with the most batch sizes, the latest of
    several, by the name of its label. Rounds of ROUNDS have a curve `label round`.
    """
    found = facts()
    found = found[~found["benchmark"].isin(LEFT_OUT)]
    curves = []
    for label, rows in found.groupby("label", sort=False):
        rounds = sorted({*rows["first_round"], *rows["last_round"]}, key=float)
        standing = {r: _standing(rows, float(r)) for r in rounds}
        most = max(map(len, standing.values()))
        latest = [r for r in rounds if len(standing[r]) == most][-1]
        curves.append((label, standing[latest]))
        others = [r for r in ROUNDS.get(label, ()) if r != latest]
        curves += [(f"{label} {r}", standing[r]) for r in others]
    runs = []
    for name, rows in curves:
        for _, row in rows.sort_values("batch_size").iterrows():
            examples, interval = examples_of(row)
            per_step = row["batch_size"]
            runs.append(
                pd.DataFrame(
                    {
                        "curve": name,
                        "unit": "examples",
                        "batch_size": per_step,
                        "run": range(1, len(examples) + 1),
                        "steps_to_result": np.round(examples / per_step, 3),
                        "bracket_low": np.round((examples - interval) / per_step, 3),
                        "evaluation_interval": round(interval / per_step, 3),
                        "noise": "",
                    }
                )
            )
    return pd.concat([*runs, _digitized()], ignore_index=True)


def _standing(rows: pd.DataFrame, at: float) -> pd.DataFrame:
    """Returns the facts that stand in a round, one a batch size."""
    first, last = rows["first_round"].astype(float), rows["last_round"].astype(float)
    return rows[(first <= at) & (at <= last)].drop_duplicates("batch_size", keep="last")


def _digitized() -> pd.DataFrame:
    table = pd.read_csv(SHALLUE).assign(unit="examples", run=1, noise=DIGITIZED)
    return table[["curve", "unit", "batch_size", "run", "steps_to_result", "noise"]]


def comparisons(fitted: Any, fits: pd.DataFrame) -> pd.DataFrame:
    """Returns the comparisons of each question, with the word that the rule gives.

    The rule is the one of the table of verdicts. Each p is adjusted for all comparisons
    of a question (Holm 1979). `within` is the factor, or difference, that 95 % exclude.
    """
    main = fits[~fits["is_variant"]]
    exponents = [
        ("exponent 1", "equal", name, *_exponent(curve.fit.free.exponent))
        for curve in fitted.curves
        if (name := curve.curve) in set(main["curve"])
    ]
    language, image = (
        np.log2(main.loc[main["kind"] == kind, "best"])
        for kind in ("language", "image")
    )
    largest = _largest(residuals(fitted, fits))
    name = f"c1/c2 of {len(language)} language over {len(image)} image models"
    kinds = [("kinds", "different", name, *_welch(language, image))]
    rounds = {f"{label} {r}": label for label, both in ROUNDS.items() for r in both}
    rounds = {a: b for a, b in rounds.items() if a in set(fits["curve"])}
    families = [
        _ratios("size", "higher", MODELS, fitted),
        _ratios("optimizer", "different", OPTIMIZERS, fitted),
        _ratios("rounds", "different", {b: a for a, b in rounds.items()}, fitted),
    ]
    rows = []
    for family in (exponents, kinds, largest, *families):
        for row, p in zip(family, holm([row[-2] for row in family]), strict=True):
            question, claim, of, value, low, high, _, within = row
            margin = EXPONENT_MARGIN if question == "exponent 1" else MARGIN
            above = value > 1
            word = _word(claim, p, above, within, margin)
            rows.append((question, claim, of, value, low, high, p, within, word))
    names = "question claim of value low high p within word".split()
    return pd.DataFrame(rows, columns=names)


def _exponent(a: Any) -> tuple[float, ...]:
    low, value, high = a.quantiles([0.025, 0.5, 0.975])
    above = a.probability_above(1.0)
    distance = np.abs(2**a.middles - 1)
    order = np.argsort(distance)
    within = np.interp(LEVEL, np.cumsum(a.masses[order]), distance[order])
    return value, low, high, 2 * min(above, 1 - above), float(within)


def _welch(one: pd.Series, other: pd.Series) -> tuple[float, ...]:
    found = stats.ttest_ind(one, other, equal_var=False)
    ends = found.confidence_interval(LEVEL)
    value = float(one.mean() - other.mean())
    within = 2 ** max(abs(ends.low), abs(ends.high))
    return 2**value, 2**ends.low, 2**ends.high, float(found.pvalue), within


def residuals(fitted: Any, fits: pd.DataFrame) -> pd.DataFrame:
    """Returns how far K* at the largest batch size lies above the law, a row a curve.

    `octaves` is log2 of K*, in the middle of its bracket, over the fit of all batch
    sizes; `predicted` is over the fit of the others, where they are MINIMUM_POINTS.
    `over_critical` is that batch size over c1/c2, where the latter is no bound.
    """
    main = fits[~fits["is_variant"]].set_index("curve")
    rows = []
    for curve in fitted.curves:
        if curve.curve not in main.index:
            continue
        points, predicted = curve.fit.observations.located(), math.nan
        at, k = points.batch_size[-1], points.middle[-1]
        others = points.where(points.batch_size < at)
        if others.batch_sizes >= MINIMUM_POINTS:
            predicted = math.log2(k / fit_law(others).steps([at])[0])
        over = math.nan if curve.fit.unresolved else at / main["critical"][curve.curve]
        residual = math.log2(k / curve.fit.steps([at])[0])
        source = main["source"][curve.curve]
        rows.append((curve.curve, source, at, over, residual, predicted))
    names = ["curve", "source", "batch_size", "over_critical", "octaves", "predicted"]
    return pd.DataFrame(rows, columns=names)


def _largest(found: pd.DataFrame) -> list[Any]:
    """Returns the mean of residuals at the largest batch sizes, of both sources."""
    rows = []
    for source, of in found.groupby("source", sort=True):
        for column, law in (("octaves", "the law"), ("predicted", "its prediction")):
            values = of[column].dropna()
            test = stats.ttest_1samp(values, 0)
            ends = test.confidence_interval(LEVEL)
            name = f"K* at the largest batch size over {law}, {len(values)} curves, "
            found_here = (values.mean(), ends.low, ends.high)
            within = 2 ** max(abs(ends.low), abs(ends.high))
            factors = [float(2**x) for x in found_here]
            row = ("largest", "equal", f"{name}{source}", *factors, test.pvalue, within)
            rows.append(row)
    return rows


def _ratios(question: str, claim: str, pairs: dict[str, str], fitted: Any) -> list[Any]:
    rows = []
    for curve, reference in pairs.items():
        [pair] = fitted.compare([(curve, reference)]).ratios
        r = pair.critical_batch_size
        p = (
            math.nan
            if "refused" in r.verdict
            else 2 * min(r.probability, 1 - r.probability)
        )
        name = f"c1/c2 of {curve} over {reference}"
        rows.append((question, claim, name, r.value, r.low, r.high, p, r.within))
    return rows


def _word(claim: str, p: float, above: bool, within: float, margin: float) -> str:
    if math.isnan(p):
        return "not measured"
    is_told, is_equal = p < 1 - LEVEL, within <= margin
    if claim == "equal":
        word = "agrees" if is_equal else "does not" if is_told else ""
    elif claim == "different":
        word = "agrees" if is_told else "does not" if is_equal else ""
    else:
        word = ("agrees" if above else "does not") if is_told else ""
    return word or "not told apart" + (f" within {within:.3g}" if within < 1e6 else "")


def fits_of(fitted: Any) -> pd.DataFrame:
    """Returns a row a curve, by c1/c2, with its kind, optimizer and tokens.

    `best` is c1/c2, averaged over the exponent where its interval leaves 1 out.
    """
    found = facts().drop_duplicates("label").set_index("label")
    rows = fitted.to_frame()
    labels = rows["curve"].str.replace(r" \d\.\d$", "", regex=True)
    labels = labels.where(labels.isin(found.index), rows["curve"])
    is_public = labels.isin(found.index)
    rows["is_variant"] = is_public & (labels != rows["curve"])
    rows["source"] = np.where(is_public, "MLPerf", "Shallue et al. 2019, digitized")
    for name in ("kind", "optimizer"):
        rows[name] = labels.map(found[name]).fillna("digitized")
    tokens = labels.map(found["tokens_per_example"].astype(float))
    for end in ("", "_low", "_high"):
        rows[f"critical_tokens{end}"] = rows[f"critical{end}"] * tokens
    is_refused = (rows["exponent_low"] > 1) | (rows["exponent_high"] < 1)
    rows["best"] = rows["averaged"].where(is_refused, rows["critical"])
    return rows.sort_values("critical", ascending=False, ignore_index=True)


def readable(fits: pd.DataFrame) -> pd.DataFrame:
    """Returns the fits of the curves of the figures, as a page shows them."""
    rows = fits[~fits["is_variant"]].reset_index(drop=True)
    runs = rows["runs_least"].astype(str) + "-" + rows["runs_most"].astype(str)
    law = np.where(rows["doubts"] == "", "not doubted", "doubted: " + rows["doubts"])
    return pd.DataFrame(
        {
            "curve": rows["curve"],
            "kind": rows["kind"],
            "optimizer": rows["optimizer"],
            "batch sizes": rows["batch_sizes"],
            "runs": runs.where(
                rows["runs_least"] < rows["runs_most"], rows["runs_most"]
            ),
            "c1/c2, examples": [_text(*r) for r in _ends(rows, "critical")],
            "c1/c2, tokens": [
                _text(*ends).partition(" (")[0] if ends[0] > 0 else "-"
                for ends in _ends(rows, "critical_tokens")
            ],
            "exponent": [
                f"{v:.2f} ({a:.2f} to {b:.2f})" for v, a, b in _ends(rows, "exponent")
            ],
            "law": law,
        }
    )


def _ends(rows: pd.DataFrame, name: str) -> Any:
    return rows[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)


def _number(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.10g}"


def _text(value: float, low: float, high: float) -> str:
    if not low or math.isinf(high):
        ends = [f"at least {_number(low)}"] * (low > 0)
        return (ends + [f"at most {_number(high)}"] * math.isfinite(high) + ["open"])[0]
    return f"{_number(value)} ({_number(low)} to {_number(high)})"


def readable_comparisons(found: pd.DataFrame) -> pd.DataFrame:
    """Returns the comparisons of pairs and kinds, as a page shows them."""
    rows = found[found["question"] != "exponent 1"].reset_index(drop=True)
    return pd.DataFrame(
        {
            "compared": rows["of"],
            "claimed": rows["claim"],
            "factor": [_text(*r) for r in rows[["value", "low", "high"]].to_numpy()],
            "p": [_p(p) for p in rows["p"]],
            "word": rows["word"],
        }
    )


def _p(p: float) -> str:
    return "-" if math.isnan(p) else "below 0.001" if p < 0.001 else f"{p:.2g}"


def sentences(folder: Path = HERE) -> list[str]:
    """Returns the numbers of the page, as its sentences have them."""
    fits, found = (pd.read_csv(folder / f"{n}.csv") for n in ("fits", "comparisons"))
    main = fits[~fits["is_variant"]]
    public = main[main["source"] == "MLPerf"]
    closed = public[(public["critical_low"] > 0) & np.isfinite(public["critical_high"])]
    least, most = closed.iloc[-1], closed.iloc[0]
    alone = found[found["question"] == "exponent 1"]
    refused = alone[alone["word"] == "does not"]
    agrees = (alone["word"] == "agrees").sum()
    doubted = main["doubts"].notna().sum()
    of_all = pd.read_csv(folder / "exponent.csv").iloc[0]
    ends_of = pd.read_csv(folder / "largest.csv").groupby("source")["octaves"]
    above, far = (ends_of.agg(f) for f in (lambda x: sum(x > 0), lambda x: max(abs(x))))
    largest = [
        f"| {row['of'].partition(' over ')[2].replace(', ', ' | ', 1)} | "
        f"{_text(row['value'], row['low'], row['high'])} | {row['word']} |"
        for _, row in found[found["question"] == "largest"].iterrows()
    ]
    ends = f"{of_all['low']:.3f} to {of_all['high']:.3f}"
    return [
        f"{len(public)} benchmarks",
        f"{len(main) - len(public)} digitized curves",
        f"{len(closed)} of them have an interval closed on both sides",
        f"from {_number(least['critical'])} ({least['curve']}) to "
        f"{_number(most['critical'])} ({most['curve']})",
        f"one exponent for all is {of_all['value']:.3f} ({ends})",
        f"The exponent is told from 1 in {len(refused)} of {len(alone)} curves",
        f"is within 0.1 of 1 in {agrees}",
        f"`fit` doubts the law in {doubted}",
        *largest,
        f"{above['MLPerf']} of {len(public)} benchmarks lie above the law",
        f"at most {far['MLPerf']:.2f} octaves off, digitized curves at most "
        f"{far.drop('MLPerf').item():.2f}",
        *(f"{row['of']} ({row['value']:.2f})" for _, row in refused.iterrows()),
    ]


def main(out: Path = HERE) -> None:
    """Writes the tables and figures into a folder."""
    table = steps()
    tables = {"steps": table, "same_lists": same_lists(facts())}
    numbers = table.assign(
        bracket_low=pd.to_numeric(table["bracket_low"]),
        noise=pd.to_numeric(table["noise"]),
    )
    fitted = dps_tf.fit_table(numbers)
    fits = fits_of(fitted)
    tables |= {"fits": fits, "table": readable(fits)}
    tables["largest"] = residuals(fitted, fits)
    found = comparisons(fitted, fits)
    tables |= {"comparisons": found, "comparisons_text": readable_comparisons(found)}
    shown = fits[~fits["is_variant"]]
    of_all = dps_tf.fit_table(numbers[numbers["curve"].isin(shown["curve"])])
    tables["exponent"] = pd.DataFrame([vars(of_all.exponent)])
    for name, rows in tables.items():
        form = None if name == "steps" else "%.4g"
        path = out / f"{name}.csv"
        rows.to_csv(path, index=False, float_format=form, lineterminator="\n")
    names = shown.loc[shown["source"] == "MLPerf", "curve"]
    public = dps_tf.fit_table(numbers[numbers["curve"].isin(names)])
    kinds = shown.set_index("curve")["kind"].to_dict()
    figures = {
        "collapsed": dps_tf.plot_collapsed(public, 4),
        "critical": dps_tf.plot_critical(of_all, kinds),
    }
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=90, metadata={"Software": None})
    print("\n".join(sentences(out)))


if __name__ == "__main__":
    main()
