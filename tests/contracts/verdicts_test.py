"""Does every verdict have its comparisons and its command, and does the rule hold?

That the tables are those of the records is seen in `gin_readme_test`: there
`launch/documents` makes them again, and nothing changes.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dps_tf.analysis import repeats
from dps_tf.workloads import reading
from dps_tf.workloads.reading import read_configuration
from tests.contracts.gin_readme_test import documents
from tests.launch.dry_runs import dry_run
from tests.packaging.source_tree import SOURCE_TREE

FOLDER = reading.folder()
TRAIN = "python -m dps_tf.train "


def rows(name: str) -> pd.DataFrame:
    """Returns a table of gin_configs/."""
    return pd.read_csv(FOLDER / f"{name}.csv", keep_default_na=False)


def module(name: str) -> ModuleType:
    """Returns a module of docs/."""
    folder = str(SOURCE_TREE / "docs")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def test_every_claim_rests_on_comparisons_or_names_its_tables():
    kinds = tuple(module("evidence").KINDS)
    claims, evidence = rows("claims"), rows("evidence")
    words = evidence[evidence["claim"] != ""].set_index("claim")["word"]
    assert set(words.index) <= set(claims["claim"])
    for _, claim in claims.iterrows():
        if claim["word"]:
            tables = claim["tables"].split()
            assert claim["claim"] not in words.index and claim["number"] and tables
            assert all((FOLDER / f"{table}.csv").is_file() for table in tables)
        found = [claim["word"]] if claim["word"] else list(words.loc[[claim["claim"]]])
        assert all(word.startswith(kinds) for word in found), claim["claim"]
        assert (FOLDER / claim["page"].partition("#")[0]).is_file()


def test_commands_are_understood(tmp_path):
    claims = rows("claims")
    commands = {
        TRAIN + f"--gin_file={study} --sweep_dir=D --data_dir=P"
        for study in claims["study"]
    }
    shown = {command for command in rows("evidence")["command"] if command}
    assert shown <= commands
    trains = sorted(commands)
    words = [shlex.split(c.removeprefix(TRAIN)) for c in trains]
    for line, (code, said) in zip(trains, dry_run(words, tmp_path), strict=True):
        assert code == 0, f"{line}\n{said}"


@pytest.mark.parametrize(
    ("claim", "names"),
    [
        ("sparse", ["lee2021/mnist_reproduction"]),
        ("sparse-seeds", ["lee2021/mnist_repeats"]),
        ("delay", ["parallelism/delay"]),
    ],
)
def test_numbers_of_trials_are_those_that_the_sweeps_ask_for(claim, names):
    asked = 0
    for sweep in (read_configuration([name], [])[0] for name in names):
        asked += sum(study.workload.points for study in sweep.studies)
        asked += len(sweep.studies) * sweep.repeats * sweep.repeated_points
    table = rows("evidence")
    assert set(table.loc[table["claim"] == claim, "trials"]) == {asked}


@pytest.fixture
def records(tmp_path):
    """Records of one study, two curves that follow the law exactly."""
    sizes = [4, 8, 16, 32, 64, 128, 256, 512]
    table = [
        (curve, size, c1 / size + c2)
        for curve, c1, c2 in (("plain", 64_000, 500), ("better", 64_000, 125))
        for size in sizes
    ]
    names = ["curve", "batch_size", "steps_to_result"]
    pd.DataFrame(table, columns=names).to_csv(tmp_path / "law.csv", index=False)
    return module("comparisons").Comparisons(tmp_path)


def test_quantities_are_those_of_the_law_that_made_the_table(records):
    end = records.fit("law", "plain").critical_batch_size
    assert end.value == pytest.approx(128, rel=0.02)
    ratio = records.ratio("law", "better", "plain")
    assert ratio.c1.value == pytest.approx(1, rel=0.02)
    assert ratio.c2.value == pytest.approx(0.25, rel=0.02)
    # A plateau would show from five times c1/c2 on, beyond 512.
    assert not records.three_regimes("law", "plain")


def test_a_comparison_is_a_call_with_plain_values(records):
    found = records.evidence('law("law", "better", "plain", "c2")')
    assert found.value == pytest.approx(0.25, rel=0.02) and found.studies == ("law",)
    for call in ('_fit("law", "plain")', "law", "(1).law()"):
        with pytest.raises(ValueError, match="is no comparison"):
            records.evidence(call)


def test_comparisons_get_their_words_and_families_are_adjusted_together(
    records, monkeypatch
):
    kind = module("evidence").Evidence
    monkeypatch.setattr(
        records, "evidence", lambda p: kind("", ("law",), 2, 1, 3, float(p), 3)
    )
    names = ("falls", "much", "rises")
    claims = [
        {"claim": name, "family": family, "study": "quickstart"}
        for name, family in zip(names, ("falls", "falls", "rises"), strict=True)
    ]
    compared = [
        {"claim": name, "comparison": "c1", "of": p, "claimed": side, "margin": ""}
        for name, p, side in zip(
            (*names, ""),
            ("0.03", "0.02", "0.06", "0.01"),
            ("higher",) * 3 + ("",),
            strict=True,
        )
    ]
    found = documents().evidence(records, claims, compared)
    # Holm: 2 x 0.02, and no less for the other of the two; one comparison of the third.
    assert list(found["p_claim"][:3]) == pytest.approx([0.04, 0.04, 0.06])
    words = ["agrees", "agrees", "not told apart within 3"]
    assert list(found["word"][:3]) == words and found["word"].isna()[3]
    assert found["needed"][2].endswith("seeds are needed")


@pytest.mark.parametrize(
    ("words", "verdict", "decides"),
    [
        (["agrees", "agrees"], "agrees", "0: 1"),
        (["not told apart within 3"] * 2, "not told apart", "0: 1"),
        (["not told apart", "agrees"], "agrees 1, not told apart 1", "1: 2"),
        (["not told apart", "does not"], "**does not 1**, not told apart 1", "1: 2"),
        (
            ["not told apart within 2", "does not", "agrees", "agrees"],
            "agrees 2, **does not 1**, not told apart 1",
            "*agrees*, 2: 3; *does not*, 1: 2",
        ),
    ],
)
def test_a_row_shows_the_comparison_that_decides_it(words, verdict, decides):
    claim = {"claim": "c", "statement": "S.", "where": "W", "source": "x", "page": "y"}
    names = [str(n) for n in range(len(words))]
    compared = [{"claim": "c", "comparison": name, "of": name} for name in names]
    found = {name: int(name) + 1 for name in names}
    told = [{"claim": "c", "word": word} for word in words]
    row = documents().verdicts([claim], compared, found, told).splitlines()[-1]
    assert row == f"| S. | {verdict} | {decides} | W | [x](y) |"


def test_every_row_of_the_page_has_a_comparison_of_its_verdict():
    """By hand from evidence.csv: the number of a row is of a word that the row has."""
    evidence, page = rows("evidence"), (FOLDER / "README.md").read_text("utf-8")
    for _, claim in rows("claims").iterrows():
        [row] = [
            x for x in page.splitlines() if x.startswith(f"| {claim['statement']}")
        ]
        mine = evidence[evidence["claim"] == claim["claim"]]
        for kind in ("agrees", "does not"):
            of_kind = mine[mine["word"].str.startswith(kind)]
            shown = [f"{name}: " in row for name in of_kind["comparison"]]
            assert any(shown) == bool(len(of_kind)), row


def test_a_bound_has_no_value(records):
    columns, estimate = module("records").columns, module("evidence").Estimate
    assert columns("c1", estimate(2.0, 1.0, 4.0)) == {
        "c1": 2,
        "c1_low": 1,
        "c1_high": 4,
    }
    shown = columns("c1", estimate(2.0, 0.0, 4.0))
    assert np.isnan([shown["c1"], shown["c1_low"]]).all() and shown["c1_high"] == 4
    assert np.isnan(columns("c1", estimate(2.0, 1.0, np.inf))["c1_high"])


@pytest.mark.parametrize(
    ("claim", "value", "p", "within", "margin", "expected"),
    [
        ("higher", 2.0, 0.049, 3.0, 1.25, "agrees"),
        ("higher", 2.0, 0.05, 3.0, 1.25, "not told apart within 3"),
        ("higher", 0.5, 0.049, 3.0, 1.25, "does not"),
        ("lower", 0.5, 0.049, 3.0, 1.25, "agrees"),
        ("lower", 2.0, 0.049, 3.0, 1.25, "does not"),
        # A small effect neither shows that a value is higher nor that it is lower.
        ("higher", 1.1, 0.5, 1.2, 1.25, "not told apart within 1.20"),
        ("different", 0.5, 0.049, 3.0, 1.25, "agrees"),
        ("different", 1.1, 0.5, 1.25, 1.25, "does not"),
        ("different", 1.1, 0.5, 1.26, 1.25, "not told apart within 1.26"),
        ("equal", 1.1, 0.5, 1.25, 1.25, "agrees"),
        ("equal", 1.1, 0.04, 1.25, 1.25, "agrees"),
        ("equal", 1.1, 0.5, 1.26, 1.25, "not told apart within 1.26"),
        ("equal", 2.0, 0.049, 3.0, 1.25, "does not"),
        ("equal", 0.8, 0.5, np.inf, 1.25, "not told apart, no factor is excluded"),
        # The upper end, 9, decides, and less does not count against it.
        ("not higher", 0.5, 0.01, 3.0, 9.1, "agrees"),
        ("not higher", 2.0, 0.01, 3.0, 9.1, "agrees"),
        ("not higher", 2.0, 0.049, 3.0, 9.0, "does not"),
        ("not higher", 2.0, 0.05, 3.0, 9.0, "not told apart, at most 9"),
        ("not higher", 0.5, 0.049, 3.0, 9.0, "not told apart, at most 9"),
    ],
)
def test_the_word_of_a_verdict_follows_from_the_rule(
    claim, value, p, within, margin, expected
):
    evidence = module("evidence")
    found = evidence.Evidence("", (), value, 0.0, 9.0, p, within)
    assert evidence.word(found, p, claim, margin) == expected
    small = evidence.Evidence("", (), value, 0.0, 9.0, p, within, is_small=True)
    is_near = claim in ("equal", "different") and within <= margin
    is_near |= claim == "not higher" and margin > 9
    told = evidence.word(small, p, claim, margin)
    assert told.startswith("not told apart") != is_near
    refused = evidence.Evidence("", (), value, 0.0, 9.0, p, within, refused="unlike")
    assert evidence.word(refused, p, claim, margin) == "not measured"


def test_means_over_seeds_are_compared_by_their_t(records):
    first, second = pd.Series([1.0, 2.0, 4.0]), pd.Series([2.0, 5.0, 9.0, 12.0])
    found = records.welch("", "law", first, second)
    theirs = stats.ttest_ind(first, second, equal_var=False)
    ends = theirs.confidence_interval()
    assert found.p == pytest.approx(theirs.pvalue)
    assert [found.low, found.high] == pytest.approx([ends.low, ends.high])
    middle, error = found.value, np.hypot(first.sem(), second.sem())
    inside = [theirs.df, middle, error]
    mass = np.diff(stats.t(*inside).cdf([-found.within, found.within]))
    assert mass == pytest.approx([0.95])


def test_a_distribution_is_compared_with_1():
    x = np.log2(1.05) + np.linspace(-0.2, 0.2, 4000)
    weights = stats.norm(np.log2(1.05), 0.03).pdf(x)
    spread = module("evidence").Distribution.of(x, x[1] - x[0], weights)
    found = module("evidence").of_distribution("", ["law"], spread, 0)
    normal = stats.norm(np.log2(1.05), 0.03)
    assert found.p == pytest.approx(2 * normal.cdf(0), rel=0.01)
    ends = np.exp2(normal.ppf([0.5, 0.025, 0.975])) - 1
    assert [found.value, found.low, found.high] == pytest.approx(ends, abs=1e-4)
    mass = np.diff(normal.cdf(np.log2([1 - found.within, 1 + found.within])))
    assert mass == pytest.approx([0.95], abs=1e-3)


def test_a_mean_of_seeds_over_a_posterior_has_the_error_of_both():
    evidence = module("evidence")
    constant = evidence.Estimate(*np.exp2([0.5, 0.5 - 1.96 * 0.25, 0.5 + 1.96 * 0.25]))
    found = evidence.of_distribution(
        "", [], evidence.quotient((-0.7, 0.15, 4), constant), 1
    )
    rng = np.random.default_rng(0)
    mean = -0.7 + 0.15 * rng.standard_t(4, 1_000_000)
    drawn = mean - rng.normal(0.5, 0.25, 1_000_000)
    ends = np.exp2(np.quantile(drawn, [0.5, 0.025, 0.975]))
    assert [found.value, found.low, found.high] == pytest.approx(ends, rel=0.01)
    assert found.p == pytest.approx(2 * np.mean(drawn > 0), rel=0.1)
    reach = np.quantile(np.abs(drawn), 0.95)
    assert np.log2(found.within) == pytest.approx(reach, rel=0.01)


def test_a_curve_that_refuses_the_law_is_compared_over_its_exponent(tmp_path):
    sizes = 2.0 ** np.arange(2, 14)
    curves = {
        "plain": 64_000 / sizes + 500,
        "same": 16_000 / sizes + 125,
        "bent": 3_000 / sizes**0.6 + 30,
    }
    names = ["batch_size", "curve", "steps_to_result"]
    table = pd.DataFrame({"batch_size": sizes, **curves}).melt("batch_size")
    table.set_axis(names, axis=1).to_csv(tmp_path / "law.csv", index=False)
    records = module("comparisons").Comparisons(tmp_path)
    same = records.law("law", "same", "plain", "c1/c2")
    assert same.value == pytest.approx(1, rel=0.02) and "exponent" not in same.about
    bent = records.law("law", "bent", "plain", "c1/c2")
    assert "averaged over the exponent" in bent.about
    assert bent.value == pytest.approx((3_000 / 30) ** (1 / 0.6) / 128, rel=0.05)


def test_the_power_of_the_best_rate_is_that_of_a_regression_with_a_rate_a_curve(
    tmp_path,
):
    random = np.random.default_rng(0)
    rows = [
        ("momentum", sparsity, size, 0.01 * size**0.7 * random.lognormal() * 0.1, 0.9)
        for sparsity in (0.0, 0.9)
        for size in (8, 32, 128, 512)
    ]
    names = ["optimizer", "sparsity", "batch_size", "learning_rate", "momentum"]
    table = pd.DataFrame(rows, columns=names).assign(at_boundary=None)
    # Neither counts: a winner at an end, another optimizer.
    at_end = ("momentum", 0.0, 2048, 1e-9, 0.9, "learning_rate")
    table.loc[len(table)] = at_end
    table.loc[len(table)] = ("sgd", 0.0, 8, 1e-9, np.nan, None)
    table.to_csv(tmp_path / "rates.csv", index=False)
    records = module("comparisons").Comparisons(tmp_path)
    found = records.rate_power(["rates"], ["momentum"], (8, 2048), "square_root")

    kept = table.iloc[:8]
    size = np.log2(kept["batch_size"].to_numpy(float))
    rate = np.log2(kept["learning_rate"] / (1 - 0.9))
    curves = [kept["sparsity"] == s for s in (0.0, 0.9)]
    design = np.column_stack([size, *curves]).astype(float)
    (power, *_), (squares,), *_ = np.linalg.lstsq(design, rate, rcond=None)
    error = np.sqrt(squares / 5 * np.linalg.inv(design.T @ design)[0, 0])
    ends = stats.t(5, power - 0.5, error).interval(0.95)
    assert found.value == pytest.approx(power - 0.5)
    assert [found.low, found.high] == pytest.approx(ends)
    assert "8 cells in 2 curves" in found.about


def test_regions_are_shares_of_points_within_steps_or_epochs(tmp_path):
    draw = np.random.default_rng(0)
    steps = {32: draw.integers(50, 1_000, (2, 8)), 512: draw.integers(20, 90, (2, 8))}
    trials = [
        {"seed": seed, "batch_size": size, "trial": n, "steps_to_result": k[seed, n]}
        for size, k in steps.items()
        for seed, n in np.ndindex(k.shape)
    ]
    # A trial that never met the goal, and one that met it in the last step of both.
    trials[3]["steps_to_result"], trials[5]["steps_to_result"] = np.nan, 400
    table = pd.DataFrame(trials)
    table.to_csv(tmp_path / "a_trials.csv", index=False)
    pd.DataFrame({"training_examples": [3_200, 3_200]}).to_csv(tmp_path / "a.csv")
    records = module("comparisons").Comparisons(tmp_path)
    for unit, within, limits in (("steps", 400, (400, 400)), ("epochs", 4, (400, 25))):
        small, large = (
            table.loc[table["batch_size"] == size, "steps_to_result"] <= limit
            for size, limit in zip((32, 512), limits, strict=True)
        )
        found = records.region("a", 512, 32, within, unit)
        test = stats.ttest_rel(large.astype(float), small.astype(float))
        assert found.value == pytest.approx(large.mean() - small.mean())
        assert [found.low, found.high] == pytest.approx(test.confidence_interval())
        assert found.p == pytest.approx(test.pvalue)


def test_a_curve_of_one_table_is_compared_with_that_of_another(tmp_path):
    sizes = 2.0 ** np.arange(2, 14)
    for name, c1 in (("one", 64_000), ("other", 16_000)):
        table = {"batch_size": sizes, "curve": "sgd"}
        table |= {"steps_to_result": c1 / sizes + 500, "evaluation_interval": 1}
        pd.DataFrame(table).to_csv(tmp_path / f"{name}.csv", index=False)
    records = module("comparisons").Comparisons(tmp_path)
    found = records.law_of_tables("one", "other", "sgd")
    assert found.value == pytest.approx(4, rel=0.05)
    assert found.studies == ("one", "other")


def test_k_of_two_curves_at_one_size_has_the_noise_of_both_and_is_no_bound(tmp_path):
    table = {"curve": ["one", "other"] * 2, "batch_size": [16, 16, 64, 64]}
    table |= {"steps_to_result": [800, 200, 400, 100]}
    table |= {"at_boundary": [None, None, None, "momentum"]}
    pd.DataFrame(table).to_csv(tmp_path / "k.csv", index=False)
    records = module("comparisons").Comparisons(tmp_path)
    found = records.steps_at("k", "one", "other", 16)
    spread = 2 ** (stats.norm.ppf(0.975) * np.hypot(*[max(repeats.STATED_NOISE)] * 2))
    expected = pytest.approx([4 / spread, 4, 4 * spread])
    assert [found.low, found.value, found.high] == expected
    with pytest.raises(ValueError, match=r"K\* at 64 of one or other is a bound"):
        records.steps_at("k", "one", "other", 64)


def test_falls_are_compared_by_the_seeds_that_both_curves_have(tmp_path):
    k = {
        ("sgd", 32): [800, 1_000, 900, 700],
        ("sgd", 512): [200, 240, 230, 180],
        ("momentum", 32): [820, 950, 880, np.nan],
        ("momentum", 512): [100, 130, 120, 90],
    }
    names = ["optimizer", "batch_size", "seed", "steps_to_result"]

    def save(name, at_end):
        cells = [
            (*key, s, v) for key, values in k.items() for s, v in enumerate(values)
        ]
        rows = pd.DataFrame(cells, columns=names)
        is_end = (rows[names[:3]] == ["momentum", 32, 1]).all(axis=1)
        rows["at_boundary"] = np.where(is_end & at_end, "momentum", None)
        rows.to_csv(tmp_path / f"{name}.csv", index=False)

    def fall(*studies):
        records = module("comparisons").Comparisons(tmp_path)
        return records.fall(studies, "optimizer", "momentum", "sgd", (32, 512))

    save("seeds", at_end=False)
    one, other = (
        np.log2(np.divide(k[name, 32], k[name, 512]))[:3]
        for name in ("momentum", "sgd")
    )
    theirs = stats.ttest_rel(one, other)
    found = fall("seeds")
    assert found.p == pytest.approx(theirs.pvalue)
    ends = theirs.confidence_interval()
    assert [found.low, found.high] == pytest.approx(np.exp2([ends.low, ends.high]))

    # The search of one cell stopped at an end, and went on beyond it.
    save("stopped", at_end=True)
    assert "an end of momentum" in fall("stopped").refused
    k = {("momentum", 32): [np.nan, 960]}
    save("no_better", at_end=True)
    assert not fall("stopped", "no_better").refused
    assert fall("stopped", "no_better").value == pytest.approx(found.value)
    k = {("momentum", 32): [np.nan, 475]}
    save("better", at_end=False)
    assert not fall("stopped", "better").refused
    assert fall("stopped", "better").value == pytest.approx(found.value / 2 ** (1 / 3))
    save("still_at_an_end", at_end=True)
    assert fall("stopped", "still_at_an_end").refused


def test_an_open_end_is_printed_as_a_bound():
    estimate, kind = module("evidence").estimate, module("evidence").Estimate
    assert estimate(kind(2.0, 1.0, 4.0)) == "2 (1 to 4)"
    assert estimate(kind(2.0, 0.0, 4.0)) == "at most 4"
    assert estimate(kind(2.0, 1.0, np.inf)) == "at least 1"


@pytest.mark.parametrize(("null", "value", "error"), [(1, 0.6, 0.4), (0, -0.02, 0.011)])
def test_so_many_seeds_tell_apart_what_is_estimated(null, value, error):
    """By simulation: the probability reaches 80 % at that number, not at one less."""
    evidence = module("evidence")
    ends = np.array([value, value - 1.96 * error, value + 1.96 * error])
    ends = np.exp2(ends) if null else ends
    found = evidence.Evidence("", (), *ends, p=0.2, within=3.0, null=null)
    seeds, comparisons = 2, 4
    told = int(evidence.seeds_needed(found, seeds, comparisons).split()[0])
    random = np.random.default_rng(0)
    draws = random.standard_normal(200_000)
    for number, expected in ((told, True), (told - 1, False)):
        z = abs(value / (error * np.sqrt(seeds / number)) + draws)
        p = comparisons * 2 * stats.norm.sf(z)
        assert (np.mean(p < 0.05) >= 0.8) == expected
    # A mean is tested by t, which asks for more.
    few = evidence.of_t("", (), (value, error, seeds - 1), null)
    told = int(re.search(r"\d+", evidence.seeds_needed(few, seeds, comparisons))[0])
    for number, expected in ((told, True), (told - 1, False)):
        values = value + error * np.sqrt(seeds) * random.normal(size=(40_000, number))
        p = comparisons * stats.ttest_1samp(values, 0, axis=1).pvalue
        # Of so many draws it is known within 0.005.
        assert (np.mean(p < 0.05) >= 0.8 - 0.005 * expected) == expected
    points = replace(few, seeds=seeds, replicates="points")
    assert re.search(
        rf"\b{told} points are", evidence.seeds_needed(points, 9, comparisons)
    )
    near = replace(found, value=1.01 if null else 1e-4)
    many = evidence.seeds_needed(near, 9, comparisons)
    assert many == "open, as more than 1,000 seeds are needed"
    some = evidence.seeds_needed(found, 11, comparisons)
    assert re.fullmatch(r"open, as [1-9]\d seeds are needed", some)
    assert evidence.seeds_needed(replace(found, within=np.inf), 2, 4) == ""
    side, other = ("higher", "lower") if value > 0 else ("lower", "higher")
    assert evidence.seeds_needed(found, 11, 4, side) == some
    assert evidence.seeds_needed(found, 11, 4, other) == f"{some} to show it {side}"


def test_a_curve_that_shares_trials_with_an_earlier_table_is_in_no_common_exponent(
    tmp_path, monkeypatch
):
    sizes = 2.0 ** np.arange(2, 10)
    k = {seed: (4_000 + seed) / sizes + 50 for seed in range(4)}

    def save(name, curves):
        rows = [
            (b, curve, seed, steps)
            for curve, seeds in curves.items()
            for seed in seeds
            for b, steps in zip(sizes, k[seed], strict=True)
        ]
        columns = ["batch_size", "curve", "seed", "steps_to_result"]
        pd.DataFrame(rows, columns=columns).to_csv(tmp_path / name, index=False)

    save("one.csv", {"sgd": (0, 1)})
    save("other.csv", {"no delay": (1,), "both": (1, 2), "delay": (3,)})
    tables = module("records")
    monkeypatch.setattr(tables, "LAW_TABLES", ("one", "other"))
    assert list(tables.Tables(tmp_path)._long("other")) == ["delay"]


def test_probabilities_are_adjusted_as_another_library_does():
    evidence = module("evidence")
    p_values = [0.01, 0.04, 0.02, 0.3, 0.005]
    found = {str(p): evidence.Evidence("", (), 1, 1, 1, p, 1) for p in p_values}
    refused = evidence.Evidence("", (), 1, 1, 1, 0.0, 1, refused="unlike")
    adjusted = evidence.holm({**found, "refused": refused})
    assert adjusted.pop("refused") == 1
    # By hand: 5 x 0.005, 4 x 0.01, 3 x 0.02, 2 x 0.04, 1 x 0.3.
    assert list(adjusted.values()) == pytest.approx([0.04, 0.08, 0.06, 0.3, 0.025])


def test_trials_of_a_row_are_those_of_its_tables_and_equal_curves_count_once(
    records, tmp_path
):
    # Sixteen a cell where a table does not say, eight cells a curve.
    assert records.trials("law", "law") == 2 * 8 * 16
    more = pd.read_csv(tmp_path / "law.csv").assign(trials=20, infeasible=0)
    more.loc[more["curve"] == "better", "steps_to_result"] += 1
    more.to_csv(tmp_path / "more.csv", index=False)
    assert records.trials("more") == 2 * 8 * 20
    # "plain" is in both.
    assert records.trials("law", "more") == 8 * 16 + 2 * 8 * 20


def test_curves_of_the_same_trials_to_two_goals_are_in_no_fit_together():
    independent = module("records").independent
    curves = dict.fromkeys(
        ["dense, goal 0.17", "dense, goal 0.15", "pruned, goal 0.19"]
    )
    alone = independent("lee2021/rivals", curves, "dense, goal 0.15")
    assert list(alone) == ["dense, goal 0.15", "pruned, goal 0.19"]
    assert list(independent("lee2021/rivals", curves, "")) == ["dense, goal 0.17"]
    assert independent("another", curves, "dense, goal 0.15") == curves
