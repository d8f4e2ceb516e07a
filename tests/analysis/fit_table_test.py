from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.fit_table import FitSettings, fit_table, read_table, text_of
from dps_tf.analysis.regimes import ends
from dps_tf.core import UserError
from tests.made_up.sweeps import Sweep, make

B = 2.0 ** np.arange(8)


def table(c1=1e5, c2=400.0, **columns):
    return pd.DataFrame({"batch_size": B, "steps_to_result": c1 / B + c2, **columns})


def small_batches_are_bounds():
    """Returns a table of a curve that data do not refuse to be flat."""
    return pd.DataFrame(
        {
            "batch_size": [8, 32, 128, 512, 2048],
            "steps_to_result": [1856, 528, 180, 111, 105],
            "bracket_low": [0, 0, 172, 108, 104],
        }
    )


def written(folder, text):
    path = folder / "table.csv"
    path.write_text(text)
    return path


def test_a_csv_gives_back_its_law(tmp_path):
    path = tmp_path / "table.csv"
    table().to_csv(path, index=False)
    [curve] = fit_table(read_table(path)).curves
    assert curve.fit.c1.value == pytest.approx(1e5, rel=5e-3)
    assert curve.fit.c2.value == pytest.approx(400, rel=3e-2)
    assert curve.curve == "all" and curve.left_out == 0
    assert curve.ends == ends(curve.fit)


def test_curves_are_fitted_apart_and_together():
    frame = pd.concat([table(curve="sgd"), table(c2=100.0, curve="momentum")])
    fitted = fit_table(frame)
    assert [curve.curve for curve in fitted.curves] == ["sgd", "momentum"]
    [ratio] = fitted.comparison.ratios
    assert ratio.reference == "sgd"
    assert ratio.c2.low < 0.25 < ratio.c2.high and ratio.c2.verdict == "lower"
    assert fitted.exponent.low < 1 < fitted.exponent.high
    [ratio] = fit_table(frame, reference="momentum").comparison.ratios
    assert ratio.reference == "momentum"
    # The best trials of one curve are all one point; both are of one optimizer.
    searched = frame.assign(trials=16, infeasible=0, learning_rate=[*B, *B**0])
    [ratio] = fit_table(searched.assign(optimizer="sgd")).comparison.ratios
    assert ratio.searches == ""


def test_what_tells_rows_apart_makes_curves():
    """An empty cell is a value, as is a goal; a study that comes twice is refused."""
    dense, pruned = table(seed=0), table(c1=4e5, seed=0)
    for one, other in (
        ({"sparsity": np.nan}, {"sparsity": 0.9}),
        ({"goal": "error <= 0.1"}, {"goal": "error <= 0.05"}),
    ):
        frame = pd.concat([dense.assign(**one), pruned.assign(**other)])
        c1 = [curve.fit.c1.value for curve in fit_table(frame).curves]
        assert c1 == pytest.approx([1e5, 4e5], rel=0.01)
    with pytest.raises(UserError, match="of seed 0 twice"):
        fit_table(pd.concat([dense, dense]))


def test_seeds_of_unlike_goals_and_names_that_are_equal_as_numbers_stay_apart(tmp_path):
    goals = [table(seed=0, goal="easy"), table(c1=3e5, seed=1, goal="hard")]
    found = fit_table(pd.concat(goals)).curves
    assert [curve.curve for curve in found] == ["goal easy", "goal hard"]
    assert found[1].fit.c1.value == pytest.approx(3e5, rel=0.05)
    rows = pd.concat([table(curve="1")[::2], table(curve="01")[1::2]])
    rows.assign(unit="tokens").to_csv(tmp_path / "named.csv", index=False)
    fitted = fit_table(read_table(tmp_path / "named.csv"))
    assert [curve.curve for curve in fitted.curves] == ["1", "01"]
    assert text_of(fitted).count(" tokens\n") == 2 and "examples" not in str(fitted)
    assert {curve["unit"] for curve in fitted.to_json()["curves"]} == {"tokens"}


def test_brackets_are_used(tmp_path):
    steps = np.ceil((1e5 / B + 350) / 100) * 100
    frame = table().assign(steps_to_result=steps, bracket_low=steps - 100)
    [with_bracket] = fit_table(frame).curves
    [without] = fit_table(frame.drop(columns="bracket_low")).curves
    assert with_bracket.fit.c2.value < without.fit.c2.value
    assert json.loads(json.dumps(with_bracket.to_json()))["bracket_low"][0] == (
        steps[0] - 100
    )


def test_a_results_table_is_such_a_table(tmp_path):
    # With these points no winner lies at an end of its range.
    sizes = {"batch_sizes": (8, 32, 64, 128), "points": 64}
    frame = make(Sweep(optimizers=("sgd", "momentum"), sparsities=(0.0,), **sizes))
    frame.results.to_csv(tmp_path / "results.csv", index=False)
    fitted = fit_table(read_table(tmp_path / "results.csv"))
    assert [c.curve for c in fitted.curves] == ["optimizer momentum", "optimizer sgd"]
    assert not fitted.curves[0].fit.observations.is_exact.any()


def test_rows_with_a_lower_bound_alone_stay_as_bounds(tmp_path):
    frame = table().assign(bracket_low=lambda f: 0.9 * f["steps_to_result"])
    frame.loc[7, "steps_to_result"] = np.nan
    frame.to_csv(tmp_path / "bounds.csv", index=False)
    fitted = fit_table(read_table(tmp_path / "bounds.csv"))
    [curve] = fitted.curves
    assert curve.left_out == 0 and list(curve.fit.observations.is_bound[6:]) == [0, 1]
    text = text_of(fitted)
    assert "1 of them bounds" in text and "bound" in text.split("residuals")[1]
    assert "c1 log-uniform" in text
    values = curve.to_json()
    assert values["steps_to_result"][7] is None
    assert values["fit"]["residuals"][7] is None


def test_rows_without_a_result_are_left_out_and_counted():
    frame = table()
    frame.loc[[1, 4], "steps_to_result"] = np.nan
    [curve] = fit_table(frame).curves
    assert curve.left_out == 2 and len(curve.fit.observations) == 6


def test_short_curves_are_named_beside_those_that_can_be_fitted():
    frame = pd.concat([table(curve="long"), table(curve="short")[:2]])
    fitted = fit_table(frame)
    assert fitted.too_short == {"short": 2}
    [alone], joined = fitted.curves, fitted.joined["short"]
    assert alone.curve == "long" and joined.scale == fitted.comparison.scale
    shown = text_of(fitted).split("short: 2 batch sizes are too few to fit alone;")[1]
    lines = shown.splitlines()[1:4]
    assert [line.split()[0] for line in lines] == ["c1", "c2", "c1/c2"]
    assert f"{joined.c1.value:,.0f}"[:2] == lines[0].split()[1][:2]
    values = fitted.to_json()["constants_in_joint_fit"]["short"]
    assert values["c2"] == joined.c2.to_json()


def test_a_curve_of_bounds_is_in_no_fit():
    bounds = table(curve="bounds").assign(bracket_low=0.0)
    frame = pd.concat([table(curve="long"), bounds])
    fitted = fit_table(frame)
    assert fitted.too_short == {"bounds": 0} and fitted.comparison is None
    assert "bounds: 0 batch sizes are too few to fit\n" in text_of(fitted) + "\n"


@pytest.mark.parametrize("seed", range(3))
def test_text_holds_estimates_and_never_a_nan(seed):
    rng = np.random.default_rng(seed)
    parts = [
        table(curve=name).assign(
            steps_to_result=lambda f: f["steps_to_result"] * 2 ** rng.normal(0, 0.1, 8)
        )[:points]
        for name, points in (("a", 8), ("b", 3), ("c", 4))
    ]
    fitted = fit_table(pd.concat(parts))
    text = text_of(fitted)
    assert "nan" not in text and max(map(len, text.splitlines())) <= 100
    assert "exponent a in common" in text
    json.dumps(fitted.to_json(), allow_nan=False)


def test_open_ends_are_words_and_null():
    frame = table(c1=1e6, c2=0.0)
    noise = np.random.default_rng(1).normal(0, 0.05, 8)
    frame["steps_to_result"] *= np.exp2(noise)
    fitted = fit_table(frame)
    assert "No plateau is resolved" in text_of(fitted)
    value = fitted.to_json()["curves"][0]["fit"]["critical_batch_size"]["high"]
    assert value is None
    json.dumps(fitted.to_json(), allow_nan=False)


def test_an_end_that_the_prior_decides_is_a_bound_and_so_are_its_regimes():
    lines = text_of(fit_table(small_batches_are_bounds())).splitlines()
    c1, ratio = (
        next(x for x in lines if x.startswith(name)) for name in ("  c1 ", "  c1/c2")
    )
    assert "at most 12,900" in c1 and "at most 148 " in ratio
    sentence = " ".join(" ".join(lines).split())
    assert "within 20 %) holds up to batch size at most 30, and" in sentence
    assert "level off from batch size at most 740; by single points" in sentence


@pytest.mark.parametrize(
    "text,message",
    [
        ("", "is not a CSV table"),
        ("batch,steps\n1,2\n", "no column 'batch_size'"),
        ("batch_size,steps\n1,2\n", "no column 'steps_to_result'"),
        (
            "batch_size,steps_to_result\n1,x\n",
            "'x' in row 1 of .*; it must be a number",
        ),
        ("batch_size,steps_to_result\n1,9\n2,-5\n4,3\n", "steps_to_result is -5"),
        ("batch_size,steps_to_result\n1,9\n0,5\n4,3\n", "batch_size is 0"),
        ("batch_size,steps_to_result\n,9\n2,5\n4,3\n", "batch_size is nan"),
        ("batch_size,steps_to_result\n1,9\n2,5\n", "the table has at most 2"),
        (
            "batch_size,steps_to_result,bracket_low\n1,9,8\n2,5,0\n4,3,2\n",
            r"at most 2; a bound, such as a bracket_low of 0, is no K\*",
        ),
        ("batch_size,steps_to_result\n", "the table has at most 0"),
        ("batch_size,steps_to_result,curve\n1,9,a\n2,5,\n", "curve is empty in row 2"),
        (
            "batch_size,steps_to_result,bracket_low\n1,9,8\n2,5,5\n4,3,2\n",
            "bracket_low is 5 in row 2",
        ),
    ],
)
def test_tables_that_cannot_be_are_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        fit_table(read_table(written(tmp_path, text)))


def test_missing_files_and_wrong_settings_are_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_table(tmp_path)
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    with pytest.raises(UserError, match="not a CSV"):
        read_table(tmp_path / "binary")
    for level in (95.0, "0.95"):
        with pytest.raises(UserError, match=f"level is {level!r}"):
            fit_table(table(), FitSettings(level=level))
    with pytest.raises(UserError, match="not a curve that can be fitted"):
        fit_table(table(), reference="sgd")
