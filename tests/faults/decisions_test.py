"""Step times, prices, devices and deadlines at the ends of what they may be.

Every case is generated: a table of step times of a known machine with one thing wrong,
or at an end of what is allowed. What comes out is the right number or one sentence.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dps_tf
from dps_tf.analysis.fit_table import fit_table
from dps_tf.analysis.interchange.runs import from_rows
from dps_tf.analysis.interchange.sweep import write_runs
from dps_tf.analysis.law import Observations, compare
from dps_tf.analysis.plan import seconds_of_a_step
from dps_tf.analysis.recommend import predict, recommend, recommend_curves
from dps_tf.analysis.step_times import step_time_model
from dps_tf.core import UserError

SIZES = 2.0 ** np.arange(3, 12)
C1, C2, LATENCY, THROUGHPUT = 40_000.0, 80.0, 2e-3, 50_000.0
POINTS = Observations.of(SIZES, (C1 / SIZES + C2) * 1.01, (C1 / SIZES + C2) * 0.99)
TABLE = pd.DataFrame({"batch_size": SIZES, "steps_to_result": C1 / SIZES + C2})


def times(devices=1, sizes=(8, 32, 128, 512, 2048), **columns) -> pd.DataFrame:
    """Returns the step times of a machine whose devices talk in no time."""
    seconds = LATENCY + np.array(sizes) / devices / THROUGHPUT
    table = pd.DataFrame({"batch_size": sizes, "devices": devices, "seconds": seconds})
    return table.assign(**columns)


@settings(max_examples=3, deadline=None)
@given(
    free=st.sampled_from([1, 2, 4]),
    price=st.floats(0.001, 100),
)
def test_free_devices_cost_nothing_and_others_their_price(free, price):
    """A price is a price at 0 too: no cost is in another unit than its neighbors."""
    paid = times(8, sizes=(64, 256, 1024, 4096), price=price)
    table = pd.concat([times(free, price=0.0), paid], ignore_index=True)
    found = recommend(POINTS, table, 8)
    rows = found.candidates
    is_paid = rows["devices"] == 8
    assert (rows.loc[~is_paid, "cost"] == 0).all()
    expected = rows["time_seconds"] * price / 3600
    assert rows.loc[is_paid, "cost"].to_numpy() == pytest.approx(expected[is_paid])
    cheapest = found.choices.set_index("choice").loc["cheapest"]
    assert cheapest["cost"] == 0
    # Of the free ones the fastest.
    least = rows.loc[~is_paid, "time_seconds"].min()
    assert cheapest["time_seconds"] == least
    assert "money" in str(found)


@pytest.mark.parametrize(
    ("measured", "asked", "least"), [((3, 6), 12, 3), ((3, 4), 4, 3), ((1, 3), 4, 3)]
)
def test_devices_that_were_measured_are_candidates(measured, asked, least):
    """The cheapest number of devices need not be a power of two."""
    tables = [
        times(n, [n * b for b in (16, 64, 256)], price=1.0 if n == least else 9.0 * n)
        for n in measured
    ]
    found = recommend(POINTS, pd.concat(tables, ignore_index=True), asked)
    cheapest = found.choices.set_index("choice").loc["cheapest"]
    sizes = least * 2.0 ** np.arange(12)
    sizes = sizes[(sizes >= SIZES.min() / 4) & (sizes <= SIZES.max() * 4)]
    seconds = (C1 / sizes + C2) * (LATENCY + sizes / least / THROUGHPUT)
    assert cheapest["devices"] == least
    assert cheapest["batch_size"] == sizes[np.argmin(seconds)]
    assert cheapest["cost"] == pytest.approx(seconds.min() / 3600, rel=0.02)


def test_without_a_price_the_cost_is_seconds_times_devices():
    found = recommend(POINTS, times(), 8)
    rows = found.candidates
    expected = rows["time_seconds"] * rows["devices"]
    assert rows["cost"].to_numpy() == pytest.approx(expected)
    assert "Costs are in seconds times devices" in str(found)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_value_that_is_none_is_named_with_its_row(data):
    column, value = data.draw(
        st.sampled_from(
            [
                *((name, x) for name in ("devices", "batch_size") for x in (1.5, 0.5)),
                *((name, -1) for name in ("devices", "batch_size", "seconds", "price")),
                *((name, 0) for name in ("devices", "batch_size", "seconds")),
                *((name, np.nan) for name in ("devices", "seconds", "price")),
                *((name, np.inf) for name in ("devices", "seconds", "price")),
                ("price", "free"),
            ]
        )
    )
    row = data.draw(st.integers(0, 4))
    table = times(price=1.0).astype({column: object})
    table.loc[row, column] = value
    with pytest.raises(UserError, match=rf"^{column} is .* in row {row + 1} "):
        recommend(POINTS, table, 2)


@pytest.mark.parametrize("devices", [0, -1, 1.5, 0.5, float("nan"), True, "2"])
def test_devices_are_a_whole_number(devices):
    with pytest.raises(UserError, match="devices is .*; it must be a whole number"):
        recommend(POINTS, times(), devices)


@pytest.mark.parametrize(
    "deadline", [float("nan"), float("inf"), 0.0, -1.0, "soon", np.timedelta64(9, "s")]
)
def test_a_deadline_is_a_positive_number(deadline):
    with pytest.raises(UserError, match="deadline is .* a positive number"):
        recommend(POINTS, times(), 1, deadline)


@settings(max_examples=3, deadline=None)
@given(share=st.floats(1e-9, 0.99), devices=st.sampled_from([1, 2, 8]))
def test_a_deadline_that_nothing_meets_is_said(share, devices):
    least = recommend(POINTS, times(), devices).candidates["time_seconds"].min()
    found = recommend(POINTS, times(), devices, float(share * least))
    assert "cheapest" not in set(found.choices["choice"])
    assert "No batch size reaches the goal within" in str(found)
    met = recommend(POINTS, times(), devices, float(1.01 * least))
    assert not met.unmet and "cheapest" in set(met.choices["choice"])


@settings(max_examples=8, deadline=None)
@given(
    sizes=st.permutations([8, 32, 128, 512, 2048]).map(lambda each: sorted(each[:4])),
    place=st.integers(0, 3),
    factor=st.sampled_from([1 / 60, 1 / 5, 1.0, 1.05, 5, 60]),
)
def test_a_step_time_is_near_the_model_or_there_is_no_recommendation(
    sizes, place, factor
):
    table = times(sizes=sizes)
    table.loc[place, "seconds"] *= factor
    found = recommend(POINTS, table, 1)
    model = step_time_model(table, 1)
    expected = np.median(model.seconds(table["batch_size"].to_numpy(float)), axis=0)
    ratio = expected / table["seconds"]
    is_near = ratio.between(1 / 1.6, 1.6).all()
    assert is_near or "a step takes" in found.abstains
    assert bool(model.misfit) <= (factor not in (1.0, 1.05))


def test_step_times_that_fall_with_the_batch_are_refused_with_both_sizes():
    seconds = [12.0, 1.4, 1.4, 1.4]
    table = pd.DataFrame({"batch_size": [8, 32, 128, 512], "devices": 1})
    found = recommend(POINTS, table.assign(seconds=seconds), 1)
    assert "1.40 s at batch size 32, up to 12 s at smaller ones" in found.abstains
    # A plan says what was measured, and not what another form makes of it.
    drawn = seconds_of_a_step(pd.Series(seconds, [8, 32, 128, 512]), [32])
    assert np.median(drawn) == pytest.approx(1.4, rel=0.2)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 1e3]), min_size=5, max_size=5))
def test_some_devices_have_one_price(prices):
    table = times(price=prices)
    if len(set(prices)) == 1:
        assert not recommend(POINTS, table, 1).abstains
        return
    told = f"prices from {min(prices):g} to {max(prices):g} for 1 device"
    with pytest.raises(UserError, match=told):
        recommend(POINTS, table, 1)


@pytest.mark.parametrize("factor", [1.0, 1.2, 3.0, 10.0])
def test_two_kinds_of_devices_are_no_measurement(factor):
    other = times(gpu="B")
    table = pd.concat([times(gpu="A"), other.assign(seconds=other.seconds * factor)])
    found = recommend(POINTS, table, 1)
    assert ("a step takes" in found.abstains) == (factor >= 3)


def test_columns_come_once_and_noise_is_finite():
    twice = pd.concat([TABLE, TABLE[["steps_to_result"]]], axis=1)
    noisy = TABLE.assign(noise=np.inf)
    for read in (fit_table, lambda given: predict(given, [48])):
        with pytest.raises(UserError, match="two columns 'steps_to_result'"):
            read(twice)
        with pytest.raises(UserError, match="noise is inf in row 1"):
            read(noisy)


@settings(max_examples=5, deadline=None)
@given(few=st.integers(1, 2), asked=st.sampled_from([1, 2, 4, 8, 16]))
def test_the_devices_with_three_batch_sizes_answer(few, asked):
    """Two sizes on one device and three on eight answer for eight and more."""
    table = pd.concat(
        [times(1, (8, 2048)[:few]), times(8, (64, 512, 4096))], ignore_index=True
    )
    if asked < 8:
        with pytest.raises(UserError, match=f"{few} batch sizes on 1 device"):
            recommend(POINTS, table, asked)
        return
    found = recommend(POINTS, table, asked)
    assert not found.abstains
    assert set(found.candidates["devices"]) == {8, asked}
    best = found.choices.set_index("choice").loc["fastest"]
    size = best["batch_size"]
    expected = (C1 / size + C2) * (LATENCY + size / asked / THROUGHPUT)
    assert best["time_seconds"] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    "tables, sizes, sparsities",
    [
        (TABLE, [], None),
        (TABLE, np.array([]), None),
        (TABLE.iloc[:0], [48], None),
        (TABLE.assign(sparsity=0.0), [48], []),
    ],
)
def test_a_prediction_of_nothing_is_one_sentence(tables, sizes, sparsities):
    with pytest.raises(UserError, match="nothing to predict: give a batch size"):
        predict(tables, sizes, sparsities)


@pytest.mark.parametrize("size", [0, -8, float("nan"), float("inf"), "many", None])
def test_a_batch_size_to_predict_is_positive(size):
    with pytest.raises(UserError, match="it must be a positive number"):
        predict(TABLE, [48, size])


@pytest.mark.parametrize("given", ["times.csv", {"batch_size": [8]}, [1], np.ones(3)])
def test_what_is_no_table_is_one_sentence(given):
    with pytest.raises(UserError, match="give a DataFrame"):
        predict(given, [48])
    with pytest.raises(UserError, match="give a DataFrame"):
        recommend_curves(TABLE, given, None, 1)


def test_numbers_as_text_and_in_other_shapes_are_the_same_numbers():
    expected = repr(recommend(POINTS, times(), 1))
    assert repr(recommend(POINTS, times().astype(str), 1)) == expected
    table = TABLE.assign(sparsity=0.0)
    both = predict(table, [48, 96])["steps"].tolist()
    assert predict(table, [[48, 96]])["steps"].tolist() == both
    assert predict(table, 48, 0.0)["steps"].tolist() == both[:1]
    with pytest.raises(UserError, match="sparsity '0.5' was not measured"):
        predict(table, 48, "0.5")
    with pytest.raises(UserError, match="must be a positive number"):
        predict(table, [10**400])


UNITLESS = {
    "durations": lambda x: pd.to_timedelta(x, unit="s"),
    "dates": lambda x: pd.to_datetime(x, unit="s"),
    "periods": lambda x: pd.PeriodIndex(pd.to_datetime(x, unit="D"), freq="D"),
    "complex": lambda x: np.array(x, complex),
    "texts": lambda x: [f"{value:,.1f} s" for value in x],
    "objects": lambda x: [pd.Timedelta(value, "s") for value in x],
}


@pytest.mark.parametrize("kind", UNITLESS)
def test_what_has_no_unit_is_refused_with_its_row(kind):
    made = UNITLESS[kind]
    for column in ("batch_size", "steps_to_result", "bracket_low"):
        table = TABLE.assign(**{column: made(TABLE.get(column, SIZES))})
        for read in (fit_table, lambda given: predict(given, [48])):
            with pytest.raises(UserError, match=f"{column} is .* in row 1 "):
                read(table)
    for column in ("batch_size", "seconds", "price"):
        table = times(price=1.0)
        table[column] = made(table[column].tolist())
        with pytest.raises(UserError, match=f"{column} is .* in row 1 "):
            recommend(POINTS, table, 1)


@pytest.mark.parametrize("unknown, known", [(1, True), (2, False), (3, False)])
def test_runs_without_a_result_are_as_long_as_any(unknown, known):
    """A median of three runs is known as long as two of them are."""
    runs = [
        TABLE.assign(run=n, steps_to_result=TABLE["steps_to_result"] * (1 + n / 9))
        for n in range(3)
    ]
    for table in runs[3 - unknown :]:
        table["steps_to_result"] = np.nan
    table = pd.concat(runs, ignore_index=True)
    if not known:
        with pytest.raises(UserError, match="a fit needs K"):
            fit_table(table)
        return
    [curve] = fit_table(table).curves
    points = curve.fit.observations
    assert points.high == pytest.approx(runs[1]["steps_to_result"].to_numpy())
    assert curve.runs == (3, 3)


@pytest.mark.parametrize("share", [0.9, 0.3, 0.99])
def test_a_measured_sparsity_in_single_precision_is_that_sparsity(share):
    table = TABLE.assign(sparsity=share)
    expected = predict(table, [48], [share])["steps"].tolist()
    for asked in ([np.float32(share)], np.float32(share), np.array([share], "f")):
        assert predict(table, [48], asked)["steps"].tolist() == expected


def test_a_column_that_step_times_lack_is_named_as_theirs():
    table = pd.DataFrame({"batch_size": SIZES, "steps_to_result": C1 / SIZES + C2})
    for name in ("batch_size", "devices", "seconds"):
        with pytest.raises(UserError, match=f"step times has no column '{name}'"):
            recommend_curves(table, times().drop(columns=name), None, 1)


@pytest.mark.parametrize("unit", ["examples", "tokens", "sequences"])
def test_steps_and_their_times_count_in_one_unit(unit):
    """Without a column, batch sizes are examples."""
    pairs = [(TABLE, times(unit=unit)), (TABLE.assign(unit=unit), times())]
    pairs += [(TABLE.assign(unit="tokens"), times(unit=unit))]
    for number, (table, measured) in enumerate(pairs):
        if unit == ("tokens" if number == 2 else "examples"):
            assert not recommend_curves(table, measured, None, 1)["all"].abstains
            continue
        with pytest.raises(UserError, match="count .*, and of its step times"):
            recommend_curves(table, measured, None, 1)


def test_names_of_two_levels_are_told():
    table = TABLE.groupby("batch_size", as_index=False).agg(
        {"steps_to_result": ["min"]}
    )
    with pytest.raises(UserError, match="names of two levels"):
        fit_table(table)


def test_an_index_with_a_name_is_a_column():
    """pandas puts what it groups by there; the curves were one, without a word."""
    every = [*range(len(TABLE))]
    slower = TABLE.assign(curve="b", steps_to_result=TABLE["steps_to_result"] * 3)
    table = pd.concat([TABLE[::2].assign(curve="a"), slower[1::2]])
    indexed = table.set_index("curve")
    assert [fit.curve for fit in fit_table(indexed).curves] == ["a", "b"]
    assert predict(indexed, [48]).equals(predict(table, [48]))
    kept = table.set_axis(pd.Index(every, name="curve"))  # beside a column of the name
    assert [fit.curve for fit in fit_table(kept).curves] == ["a", "b"]
    measured = times(unit="tokens").set_index("unit")
    with pytest.raises(UserError, match="count .*, and of its step times tokens"):
        recommend_curves(TABLE, measured, None, 1)


def test_a_study_counts_once():
    """A table that was joined to itself would halve its intervals."""
    table = pd.DataFrame({"batch_size": SIZES, "steps_to_result": C1 / SIZES + C2})
    twice = pd.concat([table, table])
    for ask in (fit_table, lambda given: predict(given, [48])):
        with pytest.raises(
            UserError, match="batch size 8.0 twice: give each study once"
        ):
            ask(twice)
    number = np.repeat([1, 2], len(table))
    for name in ("run", "seed"):
        assert len(fit_table(twice.assign(**{name: number})).curves) == 1


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Returns the tables of three runs, of batch sizes 32, 64 and 128."""
    folder, sizes = tmp_path_factory.mktemp("three"), (32, 64, 128)
    rows = [
        f"{b},{b},{s},{0.05 if s * b >= 960 else 0.3}" for b in sizes for s in (10, 90)
    ]
    text = "\n".join(["run,batch_size,step,val_error", *rows, ""])
    (folder / "runs.csv").write_text(text)
    goal = dps_tf.Goal("validation/error", 0.1)
    write_runs(from_rows(folder / "runs.csv"), folder / "s", goal)
    return dps_tf.load(folder / "s")


@pytest.mark.parametrize(
    "chosen",
    [
        [0, 2],
        [0, 1, 2],
        np.array([2, 0, 1]),
        [True, False],
        pd.Series([True, None, False], dtype="boolean"),
        ["yes", "no", "yes"],
        True,
        None,
        lambda studies: studies["batch_size"] > 32,
    ],
)
def test_studies_are_chosen_by_one_truth_value_each(tables, chosen):
    with pytest.raises(UserError, match="one truth value for each of the 3 rows"):
        tables.where(chosen)
    larger = tables.studies["batch_size"] > 32
    for right in (larger, larger[::-1], larger.astype("boolean"), [False, True, True]):
        assert tables.where(right).results["batch_size"].tolist() == [64, 128]


def test_tables_without_a_study_have_a_goal_and_no_figure(tables):
    none = tables.where([False] * 3)
    assert none.for_goal(0.2).results.empty
    with pytest.raises(UserError, match="nothing to draw"):
        none.plot()


@pytest.mark.parametrize("margin", ["2", None, True, 1.0, 0.5, float("nan"), [2.0]])
def test_a_margin_is_a_factor_above_1(margin):
    curves = {name: POINTS for name in ("a", "b")}
    with pytest.raises(UserError, match="margin is .* a factor above 1"):
        compare(curves, margin=margin)


def test_step_times_of_sparsities_as_text_are_those_of_the_numbers():
    table = pd.DataFrame({"batch_size": SIZES, "steps_to_result": C1 / SIZES + C2})
    table = pd.concat([table.assign(sparsity=share) for share in (0.0, 0.9)])
    own = pd.concat([times(sparsity=0.0), times(sparsity=0.9, seconds=0.1)])
    expected = recommend_curves(table, own, None, 1)
    found = recommend_curves(table, own.astype({"sparsity": str}), None, 1)
    assert len(found) == 2
    for name, recommendation in found.items():
        assert recommendation.candidates.equals(expected[name].candidates)


@pytest.mark.parametrize("given", [["sweeps/a", "sweeps/b"], None, 3])
def test_a_directory_is_a_text_or_a_path(given):
    with pytest.raises(UserError, match="give texts or paths, one by one"):
        dps_tf.load(given)


@pytest.mark.parametrize("goals", [(0.1, 0.2), ("1%", "2%")])
def test_batch_sizes_with_goals_of_their_own_are_on_no_curve(goals):
    sizes = np.array([8, 16, 32, 64, 128, 256])
    table = pd.DataFrame({"batch_size": sizes, "steps_to_result": 24_000 / sizes + 260})
    assert len(predict(table.assign(goal=goals[0]), [48])) == 1
    found = predict(table.assign(goal=np.repeat(goals, 3)), [48])
    assert len(found) == 2 and found["steps"].isna().all() and found["abstains"].all()


@pytest.mark.parametrize("draw", [dps_tf.plot_collapsed, dps_tf.plot_critical])
def test_what_is_drawn_is_a_fit(draw):
    with pytest.raises(
        UserError, match="drawn is a DataFrame: give what dps_tf.fit_ta"
    ):
        draw(pd.DataFrame({"batch_size": [8], "steps_to_result": [5]}))
