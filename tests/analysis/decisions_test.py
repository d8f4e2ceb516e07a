"""Predictions and recommendations: closed forms, refusals, and regret."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.analysis.law import Observations
from dps_tf.analysis.recommend import obstacles, predict, predict_curve, recommend
from dps_tf.analysis.step_times import step_time_model
from dps_tf.core import UserError

SIZES = 2.0 ** np.arange(3, 12)
C1, C2 = 40_000.0, 80.0
LATENCY, THROUGHPUT = 2e-3, 50_000.0


def law_points(c1: float = C1, c2: float = C2, sizes=SIZES) -> Observations:
    """Returns K* on the law, each with a bracket of 2 %."""
    steps = c1 / sizes + c2
    return Observations.of(sizes, steps * 1.01, steps * 0.99)


def times(devices: int = 1, sizes=(8, 32, 128, 512, 2048), **columns) -> pd.DataFrame:
    """Returns step times of the model."""
    per_device = np.array(sizes) / devices
    seconds = LATENCY + per_device / THROUGHPUT
    table = pd.DataFrame({"batch_size": sizes, "devices": devices, "seconds": seconds})
    return table.assign(**columns)


def test_latency_and_throughput_are_those_of_the_table():
    model = step_time_model(times(), 1)
    assert np.median(model.draws.c2) == pytest.approx(LATENCY, rel=0.02)
    assert np.median(model.draws.c1) == pytest.approx(1 / THROUGHPUT, rel=0.02)
    at = np.array([64.0])
    expected = LATENCY + 64 / THROUGHPUT
    assert np.median(model.seconds(at)) == pytest.approx(expected, rel=0.02)


def test_devices_that_were_not_measured_share_the_batch_at_no_cost():
    model = step_time_model(times(), 8)
    expected = LATENCY + 1024 / 8 / THROUGHPUT
    found = np.median(model.seconds(np.array([1024.0])))
    assert found == pytest.approx(expected, rel=0.02)
    assert "exchange gradients in no time" in model.assumption


def test_rows_of_these_devices_come_before_an_assumption():
    slow = times(8, sizes=(64, 256, 1024, 4096))
    slow["seconds"] += 0.05
    both = pd.concat([times(), slow], ignore_index=True)
    model = step_time_model(both, 8)
    assert np.median(model.draws.c2) == pytest.approx(LATENCY + 0.05, rel=0.02)
    assert model.assumption == "Step times were measured on 8 device(s)."


@pytest.mark.parametrize("devices", [1, 6, 8])
def test_the_fastest_batch_size_is_that_of_the_closed_form(devices):
    # (c1/B + c2)(l + B/(N r)) is least at B = sqrt(c1 l N r / c2).
    least = np.sqrt(C1 * LATENCY * devices * THROUGHPUT / C2)
    found = recommend(law_points(), times(), devices)
    assert not found.abstains
    best = found.choices.set_index("choice").loc["fastest"]
    assert abs(np.log2(best["batch_size"] / least)) <= 0.5 + 1e-9
    assert best["low"] <= best["batch_size"] <= best["high"]
    expected = (C1 / best["batch_size"] + C2) * (
        LATENCY + best["batch_size"] / devices / THROUGHPUT
    )
    assert best["time_seconds"] == pytest.approx(expected, rel=0.03)


def test_the_cheapest_is_one_device_unless_the_deadline_forbids():
    free = recommend(law_points(), times(price=3.0), 8)
    best = free.choices.set_index("choice")
    assert best.loc["cheapest", "devices"] == 1
    assert best.loc["cheapest", "cost"] < best.loc["fastest", "cost"]
    one = free.candidates[free.candidates["devices"] == 1]["time_seconds"].min()
    hurried = recommend(law_points(), times(price=3.0), 8, deadline=0.9 * one)
    assert hurried.choices.set_index("choice").loc["cheapest", "devices"] > 1


def test_the_speed_up_is_that_of_the_closed_form_and_its_share_is_named():
    def least(devices: int) -> float:
        sizes = devices * 2.0 ** np.arange(1, 12)
        sizes = sizes[(SIZES[0] / 4 <= sizes) & (sizes <= SIZES[-1] * 4)]
        seconds = LATENCY + sizes / devices / THROUGHPUT
        return float(((C1 / sizes + C2) * seconds).min())

    found = recommend(law_points(), times(), 8)
    faster = found.speed_up
    assert faster.low < faster.value < faster.high
    assert faster.value == pytest.approx(least(1) / least(8), rel=0.03)
    size = found.choices.set_index("choice").loc["fastest", "batch_size"]
    assert f"on 8 device(s), {size / 8:,.0f} per device: the goal" in str(found)
    text = f"This is {faster.value:.2f} ({faster.low:.2f} to {faster.high:.2f}) times"
    assert f"{text} as fast as the fastest on one device." in str(found)
    # Nothing is known of one device, or one is all there is.
    for alone in (
        recommend(law_points(), times(8, sizes=SIZES[3:]), 8),
        recommend(law_points(), times(), 1),
    ):
        assert not alone.abstains and alone.speed_up is None
        assert "one device" not in str(alone)


def test_conventions_are_multiples_of_the_critical_batch_size():
    choices = recommend(law_points(), times(), 1).choices.set_index("choice")
    critical = choices.loc["equal_marginal_gain", "batch_size"]
    assert critical == pytest.approx(C1 / C2, rel=0.05)
    ratio = choices["batch_size"] / critical
    assert ratio["zhang2024"] == pytest.approx(0.2, rel=0.05)
    assert ratio["efficient"] == pytest.approx(0.25, rel=0.05)
    assert ratio["shallue2019"] == pytest.approx(5.0, rel=0.1)
    found = recommend(Observations.of(SIZES, 24_000 / SIZES), times(), 1).choices
    bounds = found[found["batch_size"].isna()]
    assert len(bounds) == 4 and (bounds["high"] == np.inf).all()


def test_predictions_are_of_the_law_and_a_study_scatters_more():
    found = predict_curve(law_points(), [48, 4096]).set_index("batch_size")
    for size in (48, 4096):
        row = found.loc[size]
        assert row["abstains"] == ""
        assert row["steps"] == pytest.approx(C1 / size + C2, rel=0.05)
        assert row["study_low"] <= row["steps_low"] <= row["steps_high"]
        assert row["steps_high"] <= row["study_high"]
    # K* of another study lies as far off as those of two seeds, or as known noise.
    seeds, sizes = np.repeat(np.arange(2), len(SIZES)), np.tile(SIZES, 2)
    octaves = 0.8 * (seeds - 0.5) + np.random.default_rng(0).normal(0, 0.15, len(seeds))
    steps = C1 / sizes + C2
    for points in (
        Observations.of(sizes, steps * np.exp2(octaves), seed=seeds),
        Observations.of(sizes, steps, noise=np.full(len(sizes), 0.4)),
    ):
        row = predict_curve(points, [48]).iloc[0]
        assert row["abstains"] == ""
        assert np.log2(row["study_high"] / row["study_low"]) > 1.4


@pytest.mark.parametrize(
    ("points", "batch_size", "reason"),
    [
        (law_points(sizes=SIZES[:3]), 16, "known at 3 batch sizes"),
        (law_points(), 2048 * 5, "more than 4 times beyond"),
        (law_points(), 1, "more than 4 times beyond"),
        (Observations.of(SIZES[:5], [400, 200, 100, 400, 500]), 16, "K\\* rises"),
        (Observations.of(SIZES, 30_000 / SIZES**0.5), 8192, "the exponent decides"),
    ],
)
def test_what_the_data_cannot_carry_is_not_predicted(points, batch_size, reason):
    found = predict_curve(points, [batch_size])
    assert found["abstains"].str.contains(reason).all()
    assert found["steps"].isna().all()


def test_a_recommendation_abstains_with_the_reason():
    short = recommend(law_points(sizes=SIZES[:3]), times(), 1)
    assert short.abstains and short.choices.empty
    assert str(short).startswith("No batch size is recommended: K* is known at 3")
    # Without a plateau in sight, and with steps that cost the same at any batch size.
    steep = law_points(c1=1e6, c2=1e-3, sizes=SIZES[:6])
    flat = times().assign(seconds=LATENCY)
    assert "measure larger ones" in recommend(steep, flat, 1).abstains
    per_example = times().assign(seconds=times()["batch_size"] / THROUGHPUT)
    plateau = law_points(c1=2e3, c2=4e3)
    assert "measure smaller batch sizes" in recommend(plateau, per_example, 1).abstains
    plateau = law_points(c1=2e4, c2=4e3)
    assert "measure smaller ones" in recommend(plateau, per_example, 1).abstains
    assert "cannot share a batch" in recommend(law_points(), times(), 2**14).abstains


def test_devices_may_be_a_whole_number_of_numpy():
    found = recommend(law_points(), times(), np.int64(2))
    pd.testing.assert_frame_equal(
        found.choices, recommend(law_points(), times(), 2).choices
    )
    with pytest.raises(UserError, match="whole number"):
        recommend(law_points(), times(), np.float64(2.5))


def test_predict_takes_tables_and_the_sparsities_that_were_measured():
    parts = []
    for sparsity, factor in ((0.0, 1.0), (0.9, 4.0)):
        steps = factor * (C1 / SIZES + C2)
        parts.append(
            pd.DataFrame(
                {
                    "workload": "w",
                    "sparsity": sparsity,
                    "batch_size": SIZES,
                    "steps_to_result": steps * 1.01,
                    "bracket_low": steps * 0.99,
                    "steps_bound": "",
                }
            )
        )
    table = pd.concat(parts, ignore_index=True)
    plain = C1 / 128 + C2
    both = predict(table, [128.0])["steps"]
    assert both.to_numpy() == pytest.approx([plain, 4 * plain], rel=0.05)
    (sparse,) = predict(table, [128.0], sparsities=[0.9])["steps"]
    assert sparse == both[1]
    with pytest.raises(UserError, match="sparsity 0.5 was not measured"):
        predict(table, [128.0], sparsities=[0.5])
    with pytest.raises(UserError, match="it must be a positive number"):
        predict(table, [0.0])


@pytest.mark.slow
@settings(max_examples=5)
@given(
    critical=st.floats(16, 4096),
    knee=st.floats(4, 8192),
    devices=st.sampled_from([1, 2, 8]),
)
def test_no_other_candidate_is_faster_in_the_median(critical, knee, devices):
    points = law_points(c1=critical * C2)
    table = times().assign(
        seconds=1e-3 + np.array([8, 32, 128, 512, 2048]) / knee / 1e3
    )
    found = recommend(points, table, devices)
    if found.abstains:
        return
    rows = found.candidates[found.candidates["devices"] == devices]
    best = found.choices.set_index("choice").loc["fastest"]
    assert best["time_seconds"] == rows["time_seconds"].min()


def test_a_rise_within_the_noise_is_no_obstacle():
    rising = Observations.of(SIZES[:6], [800, 400, 220, 150, 160, 170])
    assert obstacles(rising) == ""
