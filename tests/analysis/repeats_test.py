"""Do repeats say how noisy a training is, and how lucky a minimum?"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis import repeats
from dps_tf.analysis.report.curves import labelled, labels_of, plot_rows_of
from dps_tf.analysis.tables import cell_name, study_key, with_axes
from dps_tf.core import CELL_KEY, Curve, repeated_seed

KEY = [*CELL_KEY, "precision"]
CELL = dict(zip(KEY, ["toy", "sgd", "none", 0, 8, 0.0, "float32"], strict=True))


def table(cells):
    """Returns repeats: {batch size: {trial: steps}}; infinity for not reached."""
    rows = [
        {**CELL, "batch_size": size, "trial": trial, "repeat": r, "latest": float(k)}
        for size, trials in cells.items()
        for trial, steps in trials.items()
        for r, k in enumerate(steps)
    ]
    return pd.DataFrame(rows).assign(outcome="complete")


def results(k_star):
    """Returns a results table: {batch size: (best trial, K*)}."""
    rows = [
        {
            **CELL,
            "batch_size": size,
            "best_trial": best,
            "steps_to_result": k,
            "bracket_low": k - 1,
            "steps_bound": "",
        }
        for size, (best, k) in k_star.items()
    ]
    whole = ["best_trial", "steps_to_result", "bracket_low"]
    return pd.DataFrame(rows).astype({name: "Int64" for name in whole})


def test_median_range_optimism_and_noise_of_each_point():
    found = repeats.summary(
        table({8: {3: [100, 200, 400], 5: [300, 300, np.inf]}, 16: {1: [50, 50]}}),
        results({8: (3, 100), 16: (1, 40)}),
    )
    best, second, other = (row for _, row in found.iterrows())
    assert (best["trial"], best["median"], best["least"], best["greatest"]) == (
        3,
        200,
        100,
        400,
    )
    assert best["optimism"] == 2 and best["noise"] == pytest.approx(1.0)
    assert second["reached"] == 2 and second["greatest"] == np.inf
    assert np.isnan(second["noise"]) and np.isnan(second["optimism"])
    assert other["optimism"] == 1.25 and np.isnan(other["noise"])
    assert repeats.pooled_noise(found) == pytest.approx(1.0)


def test_a_minimum_over_noisy_trials_is_optimistic_and_repeats_show_by_how_much():
    rng = np.random.default_rng(0)
    noise, trials = 0.3, 20
    found = []
    for _ in range(150):
        steps = 1000 * np.exp2(rng.normal(0, noise, trials))
        again = 1000 * np.exp2(rng.normal(0, noise, 5))
        summarized = repeats.summary(
            table({8: {int(np.argmin(steps)): again}}),
            results({8: (int(np.argmin(steps)), round(steps.min()))}),
        )
        found.append(summarized.iloc[0])
    optimism = np.log2([row["optimism"] for row in found])
    # E min of 20 standard normals is -1.867.
    assert np.mean(optimism) == pytest.approx(1.867 * noise, rel=0.1)
    pooled = repeats.pooled_noise(pd.DataFrame(found))
    assert pooled == pytest.approx(noise, rel=0.1)


def test_repeats_are_found_of_trials_that_have_been_given_labels_and_axes():
    points = [{"learning_rate": 0.2}] * 3
    own = {**CELL, "seed": repeated_seed(0, points)}
    again = table({8: {i: [100 * (i + 1)] for i in range(3)}}).assign(**own)
    again = again.assign(earliest=again["latest"], bracket_low=1)
    again = again.assign(steps_to_result=again["latest"].astype(int))
    rows = [
        {**CELL, "batch_size": size, "trial": trial, "learning_rate": rate}
        for size in (8, 16)
        for trial, rate in enumerate([0.1, 0.2])
    ]
    trials = with_axes(pd.DataFrame(rows), ["workload.fixed.delay", "workload.label"])
    trials = trials.assign(**{"workload.label": "mine"})
    found = repeats.repeats_of(again, {cell_name(own): points}, trials)
    assert found["workload.label"].to_list() == ["mine"] * 3
    assert found["latest"].to_list() == [100, 200, 300]
    assert found[["batch_size", "seed", "trial"]].to_numpy().tolist() == [[8, 0, 1]] * 3
    assert found["repeat"].to_list() == [0, 1, 2]


def test_noise_of_a_search_and_what_its_batch_sizes_share_are_those_put_in():
    rng = np.random.default_rng(0)
    noise, shared, seeds, sizes = 0.3, 0.4, 400, [8, 16, 32]
    rows = []
    for seed in range(seeds):
        together = rng.normal(0, noise * np.sqrt(shared))
        for size in sizes:
            own = rng.normal(0, noise * np.sqrt(1 - shared))
            k = 2 ** (20 - np.log2(size) + together + own)
            rows.append(
                {**CELL, "seed": seed, "batch_size": size, "steps_to_result": k}
            )
    cells = pd.DataFrame(rows).assign(steps_bound="", goal="g")
    found = repeats.noise_of_search(cells)
    assert found == pytest.approx((noise, shared), rel=0.1)
    # Each batch size alone shares nothing that could be seen; one seed has no scatter.
    alone = repeats.noise_of_search(cells[cells["batch_size"] == 8])
    assert alone[0] == pytest.approx(noise, rel=0.1) and np.isnan(alone[1])
    assert np.isnan(repeats.noise_of_search(cells[cells["seed"] == 0])).all()
    # A seed that did not reach the goal at a batch size leaves that size out.
    bound = cells.assign(steps_bound=["> 5", *[""] * (len(cells) - 1)])
    fewer = repeats.noise_of_search(bound)
    assert fewer == pytest.approx((noise, shared), rel=0.15) and fewer != found
    # So does one that met it untrained.
    untrained = [0.0, *cells["steps_to_result"][1:]]
    zero = cells.assign(steps_to_result=untrained)
    assert repeats.noise_of_search(zero) == fewer


def test_seeds_are_drawn_from_the_least_to_the_greatest():
    results = pd.DataFrame(
        {
            "workload": "toy",
            "optimizer": "sgd",
            "sparsity_method": "none",
            "seed": [0, 1, 2, 0],
            "batch_size": [8, 8, 8, 16],
            "sparsity": 0.0,
            "precision": "float32",
            "goal": "g",
            "steps_to_result": pd.array([300, 200, None, 100], dtype="Int64"),
            "steps_bound": ["", "", "> 1000", "<= 100"],
            "bracket_low": pd.array([250, 150, None, 50], dtype="Int64"),
            "at_boundary": "",
        }
    )
    cells = labelled(results, labels_of(map(Curve.of, results.to_dict("records"))))
    rows = plot_rows_of(cells).set_index("batch_size")
    shown = ["steps_to_result", "low", "high", "bound", "repeats"]
    # The third seed lies above the others.
    assert rows.loc[8, shown].tolist() == [250, 200, 300, ">=", 3]
    assert rows.loc[16, shown[:1] + shown[3:]].tolist() == [100, "<=", 1]
    # What one is at most leaves the middle one of three as it is, and not of two.
    bounds = ["", "", "<= 100", "<= 100"]
    below = cells.sort_values(["batch_size", "seed"])
    below = below.assign(steps_to_result=[300, 200, 100, 100], steps_bound=bounds)
    [three] = plot_rows_of(below[:3])[shown].to_numpy().tolist()
    assert three == [200, 100, 300, "", 3]
    [two] = plot_rows_of(below[1:3])[shown].to_numpy().tolist()
    assert two == [150, 100, 200, "<=", 2]


def test_noise_of_a_study_is_that_of_its_first_finishers():
    """The least of many trials, whose logarithms have an exponential lower tail."""
    rng, rows = np.random.default_rng(0), []
    # -log2 of uniforms upside down: the lower tail of log2 steps is exponential.
    least = 12 + 0.25 * np.log(np.sort(rng.random((400, 64)), axis=1)[:, :3])
    for cell, logs in enumerate(least):
        rows += [(cell, trial, 2.0**value) for trial, value in enumerate(logs)]
    names = ["batch_size", "trial", "latest"]
    trials = pd.DataFrame(rows, columns=names).assign(workload="w", seed=0)
    cells = pd.DataFrame(
        {
            "workload": "w",
            "seed": 0,
            "goal": "g",
            "batch_size": np.arange(400),
            "steps_bound": "",
            "steps_to_result": 2.0 ** least[:, 0],
        }
    )
    for name in study_key(cells):
        for table in (trials, cells):
            if name not in table:
                table[name] = "none"
    found = repeats.noise_of_study(cells, trials)
    assert found.low < np.std(least[:, 0]) < found.high < 1.2 * found.low
    assert "800 spacings" in found.source
    seeds = pd.concat(
        [cells.assign(seed=k, steps_to_result=100 * 2.0**k) for k in (0, 1)]
    )
    found = repeats.noise_of_study(seeds, trials)
    assert found.value == pytest.approx(0.5**0.5) and "400 degrees" in found.source
    untrained = [0.0, *seeds["steps_to_result"][1:]]
    found = repeats.noise_of_study(seeds.assign(steps_to_result=untrained), trials)
    assert found.value == pytest.approx(0.5**0.5) and "399 degrees" in found.source
    empty = repeats.noise_of_study(cells, trials[:0])
    assert np.isnan(empty.value) and (empty.low, empty.high) == repeats.STATED_NOISE
