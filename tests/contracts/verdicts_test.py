"""Is the table of verdicts that of the records, and does every command of it parse?"""

from __future__ import annotations

import functools
import re
import shlex

import numpy as np
import pandas as pd
import pytest
from scipy.stats import studentized_range

from dps_tf.analysis.fit_table import (
    curves_of_table,
    observations_by_curve,
    read_table,
)
from dps_tf.analysis.law import Estimate, fit_joint, fit_law
from dps_tf.analysis.paired_ratios import (
    PairedRatio,
    paired_ratio,
    with_theory_products,
)
from dps_tf.analysis.published import read_published
from dps_tf.analysis.tables import read_csv, study_key
from dps_tf.analysis.wording import number
from dps_tf.workloads import reading
from dps_tf.workloads.reading import read_configuration
from tests.launch.dry_runs import dry_run

FOLDER = reading.folder()
PUBLISHED = FOLDER / "shallue2019" / "published.csv"
README = FOLDER / "README.md"
TRAIN = "python -m dps_tf.train "
SGD, PRUNED_SGD = "SGD, sparsity 0", "SGD, 0.9"
NESTEROV, PRUNED_NESTEROV = "Nesterov, 0", "Nesterov, 0.9"


def rows() -> pd.DataFrame:
    """Returns the table: claim, found, trials, verdict, command."""
    lines = [x for x in README.read_text().splitlines() if x.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    names = ["claim", "found", "trials", "verdict", "command"]
    return pd.DataFrame(cells[2:], columns=names)


def row(claim: str) -> pd.Series:
    (found,) = [r for _, r in rows().iterrows() if claim in r["claim"]]
    return found


def reproduction() -> pd.DataFrame:
    """Returns K* of the reproduction, a column for each curve."""
    table = pd.read_csv(FOLDER / "lee2021" / "mnist_reproduction.csv")
    return table.pivot(index="batch_size", columns="curve", values="steps_to_result")


def trials_of(name: str) -> int:
    """Returns the trials that a shipped sweep asks for, its repeats among them."""
    sweep = read_configuration([name], [])[0]
    searched = sum(study.workload.points for study in sweep.studies)
    return searched + len(sweep.studies) * sweep.repeats * sweep.repeated_points


def test_every_claim_has_a_verdict_and_measured_ones_their_record():
    table = rows()
    assert len(table) == 20
    for _, found in table.iterrows():
        first = found["verdict"].split(",")[0]
        assert first in ("agrees", "does not", "open"), found["claim"]
        links = re.findall(r"\]\(([^)]+)\)", found["found"])
        assert all((FOLDER / link).is_file() for link in links)
        assert bool(links) == (found["trials"] != "0")
        if first != "open":
            assert links


def test_commands_are_understood(tmp_path):
    commands = {found.strip("`") for found in rows()["command"]}
    assert all(command.startswith(TRAIN) for command in commands)
    trains = sorted(commands)
    words = [shlex.split(c.removeprefix(TRAIN)) for c in trains]
    for line, (code, said) in zip(trains, dry_run(words, tmp_path), strict=True):
        assert code == 0, f"{line}\n{said}"


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        ("Sparse networks need", "mnist_reproduction"),
        ("c1/B", "mnist_reproduction"),
        ("Momentum extends", "mnist_reproduction"),
        ("square-root rule", "mnist_sgd_sparsity"),
        ("noise of seeds", "mnist_repeats"),
    ],
)
def test_numbers_of_trials_are_those_that_the_sweeps_ask_for(claim, name):
    found = trials_of(f"lee2021/{name}")
    # Both curves of dense networks are half of the cells.
    assert int(row(claim)["trials"]) == (found // 2 if "extends" in claim else found)


def test_regimes_are_those_of_the_records():
    """Steps fall with the batch at its smallest, and hardly at its largest."""
    found, trials = row("Three regimes"), 0
    for study, curve in (
        ("optimizers/fashion_mnist_fc", "optimizer sgd"),
        ("shallue2019/mnist_fc_sizes", "workload mnist-fc_64_64_64"),
        ("optimizers/text_transformer", "optimizer sgd"),
    ):
        table = curves_of_table(read_table(FOLDER / f"{study}.csv"))[curve]
        known = table.set_index("batch_size")["steps_to_result"]
        low, high = known.index.min(), known.index.max()
        first, last = known[low] / known[4 * low], known[high / 4] / known[high]
        assert first > 3 and last < 1.2
        assert f"{first:.1f} and {last:.1f}" in found["found"]
        trials += table["trials"].sum()
    assert int(found["trials"]) == trials


def test_steps_rise_with_sparsity_as_the_record_says():
    found = reproduction()
    more = {
        optimizer: found[pruned] / found[dense]
        for optimizer, dense, pruned in (
            ("SGD", SGD, PRUNED_SGD),
            # Of bounds at 256 there is no ratio.
            ("Nesterov", NESTEROV, PRUNED_NESTEROV),
        )
    }
    text = row("Sparse networks need")["found"]
    for optimizer, ratios in more.items():
        ratios = ratios.drop(256) if optimizer == "Nesterov" else ratios
        assert ratios.min() > 1
        assert f"{ratios.min():.1f} to {ratios.max():.1f} times" in text
        assert optimizer in text


def test_fits_are_those_of_the_record():
    path = FOLDER / "lee2021" / "mnist_reproduction.csv"
    curves = observations_by_curve(read_table(path))
    fits = {name: fit_law(each) for name, each in curves.items()}
    sizes = [fit.rms for fit in fits.values()]
    assert f"{min(sizes):.2f} to {max(sizes):.2f} octaves" in row("c1/B")["found"]
    joint = fit_joint(curves, SGD, pairs=[(NESTEROV, SGD)])
    text = row("Momentum extends")["found"]
    for ratio in (joint.ratios[0].c1, joint.ratios[0].c2):
        low, high = number(ratio.low), number(ratio.high)
        assert f"({number(ratio.value)} times, {low} to {high})" in text
    for study in ("fashion_mnist_fc", "text_transformer"):
        others = observations_by_curve(
            read_table(FOLDER / "optimizers" / f"{study}.csv")
        )
        end = fit_law(others["optimizer nesterov"]).critical_batch_size
        assert shown(end) in text
    text = row("pruned network with momentum")["found"]
    for name in (SGD, PRUNED_NESTEROV):
        assert shown(fits[name].critical_batch_size) in text


def test_rates_rise_as_the_record_says():
    table = pd.read_csv(FOLDER / "lee2021" / "mnist_sgd_sparsity.csv")
    text = row("square-root rule")["found"]
    rates = table.pivot(index="batch_size", columns="curve", values="learning_rate")
    rises = rates.loc[512] / rates.loc[8]
    sizes = rates.index.max() / rates.index.min()
    assert f"over {sizes:.0f} times the batch" in text
    assert f"say {sizes:.0f} and {sizes**0.5:.0f}" in text
    for name, said in (
        ("sparsity 0", "(dense)"),
        ("sparsity 0.5", "(sparsity 0.5)"),
        ("sparsity 0.9", "(0.9)"),
    ):
        assert f"{rises[name]:.1f} times {said}" in text


def test_repeats_are_those_of_the_record():
    table = pd.read_csv(FOLDER / "lee2021" / "mnist_repeats_trials.csv")
    again = table[table["repeat"].notna()]
    key = ["sparsity", "batch_size", "seed"]
    medians = again.groupby(key)["steps_to_result"].median()
    means = medians.groupby(["sparsity", "batch_size"]).mean()
    ratios = means[0.9] / means[0.0]
    text = row("noise of seeds")["found"]
    assert f"{ratios.min():.1f} to {ratios.max():.1f} times" in text
    assert f"{len(again)} repeats" in text


def shown(estimate: Estimate | PairedRatio) -> str:
    """Returns a value with its interval, as the table has it."""
    value = estimate.ratio if isinstance(estimate, PairedRatio) else estimate.value
    return f"{number(value)} ({number(estimate.low)} to {number(estimate.high)})"


def test_smoothness_and_products_are_those_of_the_record():
    wide = read_csv(FOLDER / "lee2021" / "causes_measurements.csv")
    names = [*study_key(wide), "trial", "step", "examples"]
    measured = wide.melt(names, var_name="quantity", value_name="value")
    measured = with_theory_products(measured)
    dense = measured[measured["sparsity"] == 0]
    snip = measured[measured["sparsity_method"] == "snip"]

    def ratio(quantity: str, matched: str) -> str:
        return shown(paired_ratio(snip, dense, quantity, matched))

    text = row("local smoothness")["found"]
    for quantity in ("smoothness", "largest_eigenvalue"):
        at_step, at_loss = ratio(quantity, "step"), ratio(quantity, "loss")
        assert at_step in text and at_loss in text
    text = row("products of the theory")["found"]
    c1, c2 = ratio("theory_c1", "loss"), ratio("theory_c2", "loss")
    assert f"products are {c1} and {c2} times" in text
    c1, c2 = ratio("theory_c1", "step"), ratio("theory_c2", "step")
    assert f"at equal steps they are {c1} and {c2} times" in text
    path = FOLDER / "lee2021" / "mnist_reproduction.csv"
    joint = fit_joint(observations_by_curve(read_table(path)), SGD)
    (fits,) = [each for each in joint.ratios if each.curve == PRUNED_SGD]
    assert f"were {shown(fits.c1)} and {shown(fits.c2)} times" in text
    trials = len(measured.drop_duplicates(["sparsity_method", "seed", "trial"]))
    assert int(row("local smoothness")["trials"]) == trials


def test_ends_of_perfect_scaling_of_optimizers_are_those_of_the_record():
    found = row("other than momentum")
    shows = {
        "optimizers/fashion_mnist_fc": ("soap", "adam", "sgd"),
        "optimizers/text_transformer": ("soap", "muon", "sgd"),
    }
    for study, names in shows.items():
        curves = observations_by_curve(read_table(FOLDER / f"{study}.csv"))
        for name in names:
            fit = fit_law(curves[f"optimizer {name}"])
            assert shown(fit.critical_batch_size) in found["found"]
    assert int(found["trials"]) == sum(trials_of(study) for study in shows)


def test_ends_of_perfect_scaling_of_workloads_are_those_of_the_records():
    curves = {
        "lee2021/mnist_reproduction": SGD,
        "shallue2019/mnist_fc_sizes": "workload mnist-fc_64_64_64",
        "optimizers/fashion_mnist_fc": "optimizer sgd",
        "optimizers/text_transformer": "optimizer sgd",
    }
    found = row("orders of magnitude")
    ends, trials = [], 0
    for study, name in curves.items():
        table = read_table(FOLDER / f"{study}.csv")
        end = fit_law(observations_by_curve(table)[name]).critical_batch_size
        table = curves_of_table(table)[name]
        assert shown(end) in found["found"]
        ends.append(end.value)
        # The reproduction has 16 for each of its cells of SGD.
        trials += table.get("trials", pd.Series(16, table.index)).sum()
    assert f"within a factor of {max(ends) / min(ends):.1f}" in found["found"]
    assert int(found["trials"]) == trials


def test_sizes_and_test_errors_are_those_of_the_record():
    path = FOLDER / "shallue2019" / "mnist_fc_sizes.csv"
    text = row("not by its size alone")
    curves = observations_by_curve(read_table(path))
    assert len(curves) == 3
    for observations in curves.values():
        assert shown(fit_law(observations).critical_batch_size) in text["found"]
    table = read_csv(path)
    sizes, errors = table["batch_size"], table["test_at_result"]
    small, large = errors[sizes <= 16], errors[sizes >= 1024]
    error = (small.var() / len(small) + large.var() / len(large)) ** 0.5
    found = row("out-of-sample")
    for said in (
        f"{small.mean():.4f} in the mean of batch sizes up to 16",
        f"{large.mean():.4f} from 1,024 on",
        f"standard error of {error:.4f}",
        f"[{len(table)} cells]",
    ):
        assert said in found["found"]
    assert int(text["trials"]) == table["trials"].sum()
    quality = read_csv(FOLDER / "shallue2019" / "mnist_fc_quality_trials.csv")
    epochs = read_csv(FOLDER / "shallue2019" / "mnist_fc_epochs_trials.csv")
    # Those at 64 are trials of the other, which is as long there.
    key = ["workload", "seed", "batch_size", "trial", "learning_rate"]
    same = epochs.merge(quality, on=[*key, "steps_to_result", "test_at_least"])
    assert len(same) == (epochs["batch_size"] == 64).sum() == 30
    more = len(epochs) - len(same)
    assert int(found["trials"]) == table["trials"].sum() + len(quality) + more
    assert f"[{len(quality)} trials]" in found["found"]
    assert f"[{more} more]" in found["found"]


def at_the_end(study: str, kind: str, column: str = "test_at_least") -> list[str]:
    """Returns test errors of the trials with the least validation error, by batch size.

    Means over seeds with their standard errors.
    """
    table = read_csv(FOLDER / "shallue2019" / f"{study}_trials.csv")
    table = table[table["workload"] == f"mnist-fc_64_64_64_{kind}"]
    shown = []
    for _, cells in table.groupby("batch_size"):
        errors = [
            seed.sort_values("least_validation")[column].iloc[0]
            for _, seed in cells.groupby("seed")
        ]
        error = np.std(errors, ddof=1) / len(errors) ** 0.5
        shown.append(f"{np.mean(errors):.4f} ± {error:.4f}")
    return shown


def test_errors_after_as_many_updates_are_those_of_the_record():
    after_as_many_updates = functools.partial(at_the_end, "mnist_fc_quality")
    search = after_as_many_updates("ghosts-search")
    text = row("out-of-sample")["found"]
    assert "{}, {} and {} at 64, 256 and 1,024".format(*search) in text
    ghosts = after_as_many_updates("ghosts-square_root_rule")
    whole = after_as_many_updates("batch_norm-square_root_rule")
    said = (
        f"{ghosts[-1]} over ghosts and {whole[-1]} over whole batches, {whole[0]} at 64"
    )
    assert ghosts[0] == whole[0]  # a ghost of 64 is the whole batch there
    assert said in row("Ghost batches")["found"]
    text = " ".join((FOLDER / "shallue2019" / "README.md").read_text().split())
    for errors in (search, ghosts, whole):
        means = [error.partition(" ")[0] for error in errors]
        assert "{}, {} and {}".format(*means) in text


def test_errors_after_as_many_epochs_are_those_of_the_record():
    text = " ".join((FOLDER / "shallue2019" / "README.md").read_text().split())
    ghosts, whole, search, least = (
        at_the_end("mnist_fc_epochs", kind, column)
        for kind, column in (
            ("ghosts-square_root_rule", "test_at_least"),
            ("batch_norm-square_root_rule", "test_at_least"),
            ("ghosts-search", "test_at_least"),
            ("ghosts-search", "least_validation"),
        )
    )
    for errors in (ghosts, whole, search, least):
        assert f"from {errors[0]} to {errors[-1]}" in text
    said = f"errs on {ghosts[0]} at 64 and {ghosts[-1]} at 1,024"
    assert said in row("out-of-sample")["found"]


def test_optimizers_of_the_published_network_are_those_of_the_record():
    table = read_csv(FOLDER / "shallue2019" / "mnist_optimizers.csv")
    steps = table.pivot(
        index="batch_size", columns="optimizer", values="steps_to_result"
    )
    found = row("it does on the published networks")
    theirs = read_published(PUBLISHED, ["mnist-simple_cnn_base-*"]).pivot(
        index="batch_size", columns="optimizer", values="steps_to_result"
    )
    octaves = np.log2(steps / theirs.loc[steps.index])
    small = np.log2(theirs["nesterov"] / theirs["sgd"]).loc[:255]
    falls, published_falls = (
        [f"{each[name]:.1f}" for name in ("sgd", "momentum", "nesterov")]
        for each in (steps.loc[32] / steps.loc[512], theirs.loc[32] / theirs.loc[512])
    )
    for said in (
        f"SGD fall {falls[0]} times, with momentum {falls[1]}, with Nesterov momentum "
        f"{falls[2]} times (published: {', '.join(published_falls)})",
        f"{octaves.min().min():.2f} to {octaves.max().max():.2f} octaves",
        f"[{len(table)} cells]",
    ):
        assert said in found["found"]
    assert int(found["trials"]) == table["trials"].sum()
    # What the README of the folder says of the same table.
    text = " ".join((FOLDER / "shallue2019" / "README.md").read_text().split())
    above = np.log2(steps.div(theirs["nesterov"], axis=0)).T
    ends = {
        size: f"{above[size].min():.2f} to {above[size].max():.2f}" for size in above
    }
    for said in (
        f"momentum takes {steps['momentum'][512] / steps['sgd'][512]:.2f} and Nesterov "
        f"momentum {steps['nesterov'][512] / steps['sgd'][512]:.2f} times the steps",
        f"ours are {ends[32]} octaves above at 32, {ends[128]} above at 128, and "
        f"{-octaves['nesterov'][512]:.2f} below",
        f"takes {small.min():.2f} to {small.max():.2f} octaves more steps",
    ):
        assert said in text
    held = read_csv(FOLDER / "shallue2019" / "mnist_held_out.csv")
    known = held.set_index("workload.split")["steps_to_result"]
    known = [known["last"], known["first"], steps["sgd"][128]]
    away = [f"{np.log2(value / theirs['sgd'][128]):.2f}" for value in known]
    # The range of three, by the standard deviation of K* that was measured elsewhere.
    apart = np.log2(max(known) / min(known))
    chance = studentized_range.sf(apart / 0.16, 3, np.inf)
    assert f"lie {apart:.2f} octaves apart" in text
    assert f"by chance one time in {1 / chance:.0f}" in text
    assert "K\\* is {:.0f}, with the first {:.0f}".format(*known) in text
    assert f"{away[0]}, {away[1]} and {away[2]} octaves above the published" in text


def test_resnet_is_that_of_the_record():
    table = read_csv(FOLDER / "shallue2019" / "cifar_10_optimizers.csv")
    theirs = read_published(PUBLISHED, ["cifar_10-resnet_8*"])
    ours, known = (
        rows.pivot(index="batch_size", columns="optimizer", values="steps_to_result")
        for rows in (table, theirs)
    )
    known = known.loc[ours.index]
    falls, published_falls = (
        [f"{steps.loc[16, name] / steps.loc[256, name]:.1f}" for name in steps]
        for steps in (ours[["sgd", "nesterov"]], known[["sgd", "nesterov"]])
    )
    times, published_times = (
        [
            f"{steps['sgd'][size] / steps['nesterov'][size]:.2f}"
            for size in (16, 64, 256)
        ]
        for steps in (ours, known)
    )
    below = -np.log2(ours / known)
    found = row("most of all on CIFAR-10")
    for said in (
        f"steps of SGD fall {falls[0]} times, with Nesterov momentum {falls[1]} times "
        f"(published: {', '.join(published_falls)})",
        f"SGD takes {times[2]} times its steps (published: {published_times[2]})",
        f"{below.min().min():.2f} to {below.max().max():.2f} octaves below",
        f"[{len(table)} cells]",
    ):
        assert said in found["found"]
    assert int(found["trials"]) == table["trials"].sum()
    # What the README of the folder says of the same table.
    text = " ".join((FOLDER / "shallue2019" / "README.md").read_text().split())
    assert (below < 0.25).sum().sum() == 5
    apart = np.log2(float(ours["sgd"][256] / ours["nesterov"][256]))
    assert 9 <= apart / (0.16 * 2**0.5) < 10
    means = table.groupby("batch_size")["test_at_result"].mean()
    for said in (
        "SGD takes {}, {} and {} times the steps of Nesterov momentum".format(*times),
        "momentum; {}, {} and {} times are published".format(*published_times),
        f"At 256 that is {apart:.2f} octaves",
        f"{means[16]:.3f}, {means[64]:.3f} and {means[256]:.3f} in the mean",
    ):
        assert said in text


def test_subsets_are_those_of_the_record():
    path = FOLDER / "shallue2019" / "mnist_subsets.csv"
    table, found = read_csv(path), row("its size hardly")
    steps = table.pivot(
        index="batch_size", columns="training_examples", values="steps_to_result"
    )
    falls = steps.loc[16] / steps.loc[256]
    said = f"{falls[55_000]:.1f} times on all of MNIST and {falls[6875]:.1f} times on"
    assert said in found["found"]
    ends = [
        shown(fit_law(each).critical_batch_size)
        for each in observations_by_curve(read_table(path)).values()
    ]
    assert f"c1/c2 is {ends[0]} and {ends[1]}" in found["found"]
    assert f"[{len(table)} cells]" in found["found"]
    assert int(found["trials"]) == table["trials"].sum()


def test_text_networks_are_those_of_the_record():
    table = read_csv(FOLDER / "shallue2019" / "text_networks.csv")
    steps = table.pivot(
        index="batch_size", columns="workload", values="steps_to_result"
    )
    falls = steps.loc[16] / steps.loc[1024]
    found = row("than an LSTM")
    assert (
        f"the Transformer fall {falls['text-transformer']:.1f} times, those of the "
        f"LSTM {falls['text-lstm']:.1f} times" in found["found"]
    )
    curves = observations_by_curve(
        read_table(FOLDER / "shallue2019" / "text_networks.csv")
    )
    ends = {n: fit_law(each).critical_batch_size for n, each in curves.items()}
    transformer, lstm = ends["workload text-transformer"], ends["workload text-lstm"]
    assert f"c1/c2 is {shown(transformer)} and {shown(lstm)}" in found["found"]
    assert lstm.high < transformer.low
    times = transformer.value / lstm.value
    assert f"differ {times:.0f} times" in row("orders of magnitude")["verdict"]
    assert f"[{len(table)} cells]" in found["found"]
    assert int(found["trials"]) == table["trials"].sum()


def test_rules_reach_what_the_record_says():
    rules = read_csv(FOLDER / "shallue2019" / "mnist_fc_rules.csv")
    reached = rules.assign(rule=rules["workload"].str.rpartition("-")[2])
    reached = reached.groupby(["rule", "batch_size"])["steps_to_result"].count()
    at_256 = reached.xs(256, level="batch_size").to_dict()
    assert at_256 == {
        "linear_rule": 0,
        "linear_rule_with_warmup": 2,
        "square_root_rule": 3,
    }
    assert not reached.xs(1024, level="batch_size").any()
    search = read_csv(FOLDER / "shallue2019" / "mnist_fc_sizes.csv")
    search = search[search["workload"] == "mnist-fc_64_64_64"].set_index("batch_size")
    steps = search["steps_to_result"]
    found = row("Budgets and tuning")
    assert f"needs {steps[256]:,.0f} and {steps[1024]:,.0f} steps" in found["found"]
    assert int(found["trials"]) == len(rules)
    assert set(reached.groupby("rule").size()) == {6} and len(rules) == 54


def test_reach_of_a_rule_with_ghosts_is_that_of_the_record():
    table = read_csv(FOLDER / "shallue2019" / "mnist_fc_ghosts.csv")
    found = row("Ghost batches")
    reached = table.groupby(["workload", "batch_size"])["steps_to_result"]
    count, median = reached.count(), reached.median()
    search = "mnist-fc_64_64_64_ghosts-search"
    rules = sorted(set(table["workload"]) - {search})
    assert len(rules) == 2
    for rule in rules:
        assert count[rule].to_dict() == {64: 3, 256: 3, 1024: 3, 4096: 0}
    steps = median[search]
    assert f"needs {steps[1024]:.0f} and {steps[4096]:.0f} steps" in found["found"]
    curves = observations_by_curve(
        read_table(FOLDER / "shallue2019" / "mnist_fc_ghosts.csv")
    )
    ends = [fit_law(each) for name, each in curves.items() if "search" in name]
    assert len(ends) == 3
    for fit in ends:
        assert shown(fit.critical_batch_size) in found["found"]
    assert f"[{len(table)} cells]" in found["found"]
    quality = read_csv(FOLDER / "shallue2019" / "mnist_fc_quality_trials.csv")
    rule = quality[~quality["workload"].str.endswith("search")]
    assert int(found["trials"]) == table["trials"].sum() + len(rule)


def test_cost_of_delays_is_that_of_the_record():
    path = FOLDER / "parallelism" / "delay.csv"
    curves = observations_by_curve(read_table(path))
    four, none = (f"workload.fixed.delay {tau}" for tau in (4, 0))
    (fits,) = fit_joint(curves, none, pairs=[(four, none)]).ratios
    found = row("late updates")
    assert f"c1 is {shown(fits.c1)} and c2 {shown(fits.c2)} times" in found["found"]
    table = read_csv(path).pivot(
        index="batch_size", columns="workload.fixed.delay", values="steps_to_result"
    )
    more = table["4"] / table["0"]
    text = f"{more[8]:.1f} times the steps at batch size 8 and {more[128]:.1f} times"
    assert text in found["found"]
    assert int(found["trials"]) == trials_of("parallelism/delay")
