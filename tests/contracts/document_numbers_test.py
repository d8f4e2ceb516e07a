"""Is every number in the sentences of results one of a table?

A factor with its interval, or a bound of one, is a row of `evidence.csv`, `fits.csv` or
`ratios.csv`, or of a table of pairs. The other numbers that were measured are listed
here, each as a sentence has it and as its table gives it.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.wording import number, steps, with_interval
from dps_tf.workloads import reading

FOLDER = reading.folder()
PAGES = ("", "lee2021/", "optimizers/", "parallelism/", "shallue2019/")
ESTIMATE = re.compile(r"[-+]?[\d.,]*\d \([-+]?[\d.,]*\d to [-+]?[\d.,]*\d\)")
BOUND = re.compile(r"at (?:most|least) ([\d.,]*\d) times")
UNMEASURED = {
    # What --plan said, at the commit that measured; no table holds it.
    "8.8 (6.3 to 13.7)",
    "3.4 (2.5 to 4.5)",
}


@functools.cache
def table(name: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / f"{name}.csv")


def page(folder: str) -> str:
    text = (FOLDER / folder / "README.md").read_text("utf-8")
    return " ".join(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split())


@functools.cache
def estimates() -> set[str]:
    """Returns each estimate of the tables as a sentence shows it."""
    shown = set(UNMEASURED)

    def add(value: float, low: float, high: float) -> None:
        shown.add(with_interval(value, low, high, digits=3))
        ends = [f"{x:+.3g}" for x in (value, low, high)]
        shown.add(f"{ends[0]} ({ends[1]} to {ends[2]})")
        shown.add(f"{ends[0]} ({ends[1]} to {ends[2]})".replace("(+", "(").lstrip("+"))

    for name in ("evidence", "fits", "ratios"):
        rows = table(name)
        for column in [c.removesuffix("_low") for c in rows if c.endswith("_low")]:
            ends = (column, f"{column}_low", f"{column}_high")
            for value, low, high in rows[[*ends]].itertuples(index=False):
                if np.isnan([low, high]).all():
                    continue
                open_low, open_high = 0.0 if np.isnan(low) else low, high
                open_high = np.inf if np.isnan(high) else high
                if np.isnan(value) and open_low > 0 and open_high < np.inf:
                    continue
                add(1.0 if np.isnan(value) else value, open_low, open_high)
    for name in ("lee2021/causes_pairs", "lee2021/causes_fashion_mnist_pairs"):
        for how in ("at_equal_steps", "at_equal_training_loss"):
            for values in table(name)[[how, f"{how}_low", f"{how}_high"]].to_numpy():
                shown.add(with_interval(*values, digits=3))
    return shown


@pytest.mark.parametrize("folder", PAGES)
def test_every_estimate_is_of_a_table(folder):
    text = page(folder)
    found = set(ESTIMATE.findall(text)) | {
        match[0].removesuffix(" times") for match in BOUND.finditer(text)
    }
    missing = found - estimates() - SINGLE.get(folder, set())
    assert not missing, missing


SINGLE = {
    # Estimates that a function below gives.
    "lee2021/": {"0.966 (0.834 to 1.13)"},
    "shallue2019/": {"1.01 (0.977 to 1.03)"},
}


def repeated(statistic: str) -> str:
    found = table("lee2021/mnist_repeats_summary")
    octaves = np.log2(found["median"] / found["steps_to_result"])
    assert statistic == "median"
    return f"{octaves.mean():.3f} ± {octaves.sem():.3f}"


def noise(of: str) -> str:
    rows = table("lee2021/mnist_repeats_noise").set_index("noise_of")
    return rows["of_the_steps"][of]


def methods(level: str) -> str:
    rows = table("lee2021/fashion_mnist_methods")
    text = rows.set_index("method")[f"sparsity {level}"]["`synflow`"]
    return text.partition(" ")[0]


def held_out() -> str:
    rows = table("shallue2019/mnist_held_out").set_index("workload")["steps_to_result"]
    return ", ".join(steps(value) for value in sorted(rows))


def reached(rule: str, size: int) -> int:
    rows = table("shallue2019/mnist_fc_rules")
    cells = rows[(rows["batch_size"] == size) & rows["workload"].str.endswith(rule)]
    return int(cells["steps_to_result"].notna().sum())


def searched(size: int) -> str:
    rows = table("shallue2019/mnist_fc_sizes")
    at = rows[(rows["workload"] == "mnist-fc_64_64_64") & (rows["batch_size"] == size)]
    return steps(at["steps_to_result"].item())


def product(optimizer: str) -> float:
    rows = table("optimizers/fashion_mnist_fc_products").query("batch_size == 128")
    return rows.set_index("optimizer")["c1_product_over_sgd"][optimizer]


def lowest(method: str) -> str:
    rows = table("lee2021/lowest_errors_trials")
    rows = rows[rows["sparsity_method"] == method]
    return f"{rows['least_validation'].min():.3f}"


def regimes() -> str:
    dense = table("fits").query("dense")
    return f"{int(dense['three_regimes'].sum())} of {len(dense)} curves"


def span(end: int) -> str:
    dense = table("fits").query("dense").dropna(subset="critical_batch_size")
    row = dense.sort_values("critical_batch_size").iloc[end]
    names = (
        "critical_batch_size",
        "critical_batch_size_low",
        "critical_batch_size_high",
    )
    return with_interval(*(row[name] for name in names), digits=3)


MEASURED = [
    ("lee2021/", "{} ± ", lambda: repeated("median").partition(" ")[0]),
    ("lee2021/", "needs {} more or fewer steps", lambda: noise("one training")),
    ("lee2021/", "moves by {}.", lambda: noise("K* of a search")),
    ("lee2021/", "| `synflow` | {} |", lambda: methods("0.9")),
    ("lee2021/", "| `synflow` | 450 | {} |", lambda: methods("0.98")),
    ("lee2021/", "are {} (dense)", lambda: lowest("none")),
    ("lee2021/", "and {} (pruned)", lambda: lowest("snip")),
    ("optimizers/", "it is {} times the value of SGD", lambda: round(product("lamb"))),
    ("optimizers/", "For SOAP it is {} times", lambda: number(product("soap"))),
    ("shallue2019/", "needs {} and", lambda: searched(256)),
    ("shallue2019/", "1,080 and {} steps", lambda: searched(1024)),
    ("shallue2019/", "with {} of 3 seeds", lambda: reached("-linear_rule", 256)),
    ("shallue2019/", "warm-up saves {},", lambda: reached("_with_warmup", 256)),
    ("shallue2019/", "rule all {},", lambda: reached("square_root_rule", 256)),
    ("shallue2019/", "show in {} of dense", regimes),
    ("", "three in {} |", regimes),
    ("shallue2019/", "from {} for an LSTM", lambda: span(0)),
    ("shallue2019/", "to {} with ghost", lambda: span(-1)),
]


@pytest.mark.parametrize(("folder", "sentence", "value"), MEASURED)
def test_a_measured_number_is_that_of_its_table(folder, sentence, value):
    assert sentence.format(value()) in page(folder)


def test_a_table_of_shares_is_that_of_its_trials():
    trials = table("shallue2019/regions_trials")
    [examples] = table("shallue2019/regions")["training_examples"].unique()
    for row in table("shallue2019/regions_shares").itertuples(index=False):
        for size, share in zip((32, 128, 512, 2048), row[2:], strict=True):
            most = row.within * (1 if row.unit == "steps" else examples / size)
            steps_to_result = trials.loc[
                trials["batch_size"] == size, "steps_to_result"
            ]
            assert share == pytest.approx((steps_to_result <= most).mean(), abs=0.00501)


def test_an_estimate_that_no_table_has_is_noticed():
    assert "3.25 (2.23 to 4.72)" in estimates()
    assert "3.26 (2.23 to 4.72)" not in estimates()
    assert "at most 0.0690" in estimates()
