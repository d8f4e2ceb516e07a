"""The report: what it says and warns of, and no more than is known."""

from __future__ import annotations

import dataclasses
import functools
import html
import html.parser
import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis import loading, report
from dps_tf.analysis.published import read_published
from dps_tf.analysis.report import curves, page
from dps_tf.analysis.report.assembly import assemble
from dps_tf.analysis.report.cautions import cautions
from dps_tf.analysis.report.content import CAPTION, Caution, Report, ReportContext
from dps_tf.analysis.report.headline import headline
from dps_tf.analysis.report.measurements import averaged, noise_table
from dps_tf.analysis.report.published import published_part
from dps_tf.analysis.report.results import steps_text
from dps_tf.analysis.report.summary import summary
from dps_tf.analysis.report.terminal import terminal_table
from dps_tf.analysis.search_health import best_of_n_table
from dps_tf.core import UserError
from dps_tf.store import StoredTables
from tests.analysis.few_sections import context_of, draw_only
from tests.made_up.specifications import ERROR
from tests.made_up.sweeps import Sweep, law_of, make

SMALL = Sweep(sparsities=(0.0,), batch_sizes=(16, 64, 256), points=8, measured=False)
PAIR = Sweep(batch_sizes=(8, 16, 64, 256), points=8)


@dataclasses.dataclass(frozen=True)
class Written:
    """A report on disk, and what it was made from."""

    tables: loading.Tables
    report: Report
    folder: Path

    @property
    def page(self) -> str:
        return (self.folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Written:
    ran = loading.SweepRecord("sweeps/x", "a.b = 3\n", ({"tensorflow": "2"},))
    tables = dataclasses.replace(make(PAIR), sweeps=(ran,))
    folder = tmp_path_factory.mktemp("pair") / "new" / "folder"
    return Written(tables, report.write_report(tables, folder), folder)


@functools.cache
def context(sweep: Sweep) -> ReportContext:
    return context_of(make(sweep))


def curves_of(sweep: Sweep) -> curves.Curves:
    return context(sweep).curves


def cautions_of(tables: loading.Tables) -> tuple[Caution, ...]:
    """Returns the cautions alone: drawing takes most of the time of a report."""
    return cautions(context_of(tables))


def warned(sweep: Sweep) -> list[str]:
    return titles(cautions(context(sweep)))


def titles(found: Iterable[Caution]) -> list[str]:
    return [caution.title for caution in found]


class Elements(html.parser.HTMLParser):
    """Collects the elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


# What is written.


def test_files_are_those_that_are_promised(pair):
    names = {path.name for path in pair.folder.iterdir()}
    assert names >= {
        "report.html",
        "results.csv",
        "trials.parquet",
        "curves.parquet",
        "best_of_n.csv",
        "steps_to_result.png",
        "steps_to_result.svg",
    }


def test_same_tables_give_the_same_bytes(tmp_path, monkeypatch):
    # One section with a figure and one with tables: what writes them is the same.
    draw_only(monkeypatch, "headline", "health")
    alone = dataclasses.replace(SMALL, batch_sizes=(64,), points=2)
    for name in ("first", "second"):
        report.write_report(make(alone), tmp_path / name)
    first = {p.name: p.read_bytes() for p in (tmp_path / "first").iterdir()}
    second = {p.name: p.read_bytes() for p in (tmp_path / "second").iterdir()}
    assert first == second


def test_outcomes_add_up_to_trials(pair):
    csv = pd.read_csv(pair.folder / "results.csv")
    outcomes = ["complete", "incomplete", "infeasible", "censored", "failed"]
    assert (csv[outcomes].sum(axis=1) == csv["trials"]).all()


def test_tables_can_be_reduced_again_to_the_same_results(pair):
    tables = pair.tables
    again = loading.tables_of(
        StoredTables(
            tables.studies,
            pd.read_parquet(pair.folder / "trials.parquet"),
            pd.read_parquet(pair.folder / "curves.parquet"),
            tables.measurements,
        )
    ).results
    steps = ["batch_size", "sparsity", "steps_to_result", "bracket_low"]
    pd.testing.assert_frame_equal(again[steps], tables.results[steps])


def test_folder_that_cannot_be_made_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written") as error:
        report.write_report(make(SMALL), tmp_path / "file" / "report")
    assert "\n" not in str(error.value)


# The page.


def test_what_matters_comes_first_and_all_else_is_folded(pair):
    text = pair.page
    lead = pair.report.lead
    assert lead.startswith("Data set and network: mnist_simple_cnn. Optimizer: sgd.")
    assert f"Goal: {ERROR} <= 0.03. 8 cells" in lead and lead in html.unescape(text)
    names = ["sentence", "headline", "cautions", "table", "summary", "law"]
    places = [text.index(f'id="{name}"') for name in names]
    assert places == sorted(places)
    folded = {d.get("id") for d in Elements(text).all("details")}
    assert {"summary", "law", "definitions", "configuration"} <= folded
    assert not folded & {"headline", "cautions", "table"}


class VisibleWords(html.parser.HTMLParser):
    """Collects the words that a reader sees before anything is unfolded."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in ("details", "summary", "script", "style", "title"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in self._inside:
            self._inside.remove(tag)

    def handle_data(self, data):
        hidden = {"script", "style", "title"} & {*self._inside}
        if not hidden and self._inside.count("details") <= self._inside.count(
            "summary"
        ):
            self.words += data.split()


def test_a_sweep_of_four_cells_has_few_words_before_unfolding(pair):
    words = VisibleWords(pair.page).words
    assert "sparsity" in words and 100 < len(words) <= 1200


def test_captions_have_four_lines_and_definitions_a_section(pair):
    figures = [item for part in pair.report.sections for item in part.illustrations]
    assert [i.name for i in figures if len(i.caption) > CAPTION] == []
    defined = [item.title for item in figures if item.definition]
    assert defined and 'href="#definitions"' in pair.page
    section = pair.page.split('id="definitions"')[1].split("</details>")[0]
    assert all(f"<dt>{title}</dt>" in section for title in defined)


def test_page_links_to_the_tables_that_lie_beside_it(pair):
    links = {a["href"] for a in Elements(pair.page).all("a")}
    tables = {"results.csv", "trials.parquet", "curves.parquet"}
    assert tables <= links
    assert all((pair.folder / name).exists() for name in tables)


def test_rows_of_tables_have_headers(pair):
    elements = Elements(pair.page)
    headers = [a for a in elements.all("th") if a.get("scope") == "row"]
    assert len(headers) > 10
    # Nothing of a tag has become text or an attribute of its own.
    assert not [a for _, a in elements.found if any("&" in k or '"' in k for k in a)]


def test_page_asks_nothing_of_any_network(pair):
    elements = Elements(pair.page)
    for tag, attributes in elements.found:
        for name in ("src", "srcset", "data", "poster", "action", "background"):
            assert not re.match(r"(https?:)?//", attributes.get(name) or "")
        if tag != "a":
            assert not (attributes.get("href") or "").startswith("http")
    assert not elements.all("iframe")
    # What scripts may load is up to the policy below, and to the test in a browser.
    without = re.sub(r"<script>.*?</script>", "", pair.page, flags=re.DOTALL)
    assert "@import" not in without
    assert not re.search(r"url\((?!data:)", without)
    policy = next(m for m in elements.all("meta") if m.get("http-equiv"))
    assert policy["content"].startswith("default-src 'none'; img-src data:;")


def test_every_figure_has_alternative_text_and_a_caption(pair):
    elements = Elements(pair.page)
    images = elements.all("img")
    assert len(images) == len(elements.all("figure")) >= 5
    assert len(elements.all("figcaption")) == len(images)
    for image in images:
        assert len(image["alt"]) > 40
        assert int(image["width"]) > 200 and int(image["height"]) > 100
    texts = [image["alt"] for image in images]
    assert len(set(texts)) == len(texts)


def test_ids_are_unique_and_every_link_leads_somewhere(pair):
    elements = Elements(pair.page)
    ids = [a["id"] for _, a in elements.found if "id" in a]
    assert len(set(ids)) == len(ids)
    inner = [a["href"][1:] for a in elements.all("a") if a["href"].startswith("#")]
    assert inner and set(inner) <= set(ids)


def test_tables_can_be_sorted_from_the_keyboard(pair):
    elements = Elements(pair.page)
    headers = [h for h in elements.all("th") if h.get("scope") == "col"]
    assert len(headers) == len(elements.all("button"))
    assert {h["aria-sort"] for h in headers} == {"none"}
    # What scrolls can be reached by the keyboard and has a name.
    for region in [d for d in elements.all("div") if d.get("class") == "scroll"]:
        assert region["tabindex"] == "0"
        assert region.get("aria-label") or region.get("aria-labelledby")


def test_page_has_landmarks_a_language_and_a_skip_link(pair):
    elements = Elements(pair.page)
    for tag in ("header", "main", "footer", "h1"):
        assert len(elements.all(tag)) == 1, tag
    assert elements.all("html")[0]["lang"] == "en"
    assert elements.all("a")[0]["href"] == "#main"


@pytest.fixture(scope="module")
def evil() -> str:
    """The page of a sweep whose names and gin text are code."""
    name = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    made = make(dataclasses.replace(SMALL, batch_sizes=(64,), points=4))
    tables = ("studies", "trials", "curves")
    named = {table: getattr(made, table).assign(workload=name) for table in tables}
    attack = dataclasses.replace(made, **named)
    gin = loading.SweepRecord("</pre><script>x</script>", "</pre><b>bold")
    tables = loading.tables_of(attack, sweeps=(gin,))
    return page.render(assemble(tables))


def test_names_that_are_code_are_harmless(evil):
    assert "&lt;script&gt;alert(1)" in evil
    elements = Elements(evil)
    # Scripts that run are the library's and the page's own; the others are data.
    running = [s for s in elements.all("script") if "type" not in s]
    assert len(running) == 2
    assert all(image["src"].startswith("data:") for image in elements.all("img"))
    assert not [a for _, a in elements.found if "onerror" in a]


def test_gin_text_cannot_leave_its_place(evil):
    assert "&lt;b&gt;bold" in evil
    assert "</pre><b>" not in evil and "</pre><script>" not in evil


# Sentences and tables.


def test_sentence_says_range_and_regimes(pair):
    found = pair.report.summary
    # Of each curve what to train with, after what it is.
    assert len(found) == 5
    assert found[0].startswith("sparsity 0: ")
    assert "16 times" not in found[0] and "32 times the batch" in found[0]
    assert "half the steps, within 20 %) holds up to batch size" in found[0]
    first = pair.report.sentence
    assert first.startswith("sparsity 0: ") and first.count(". ") == 0
    touching = [c for c in pair.report.cautions if not c.is_note]
    told = first.split("but beware: ")[1].lower()
    assert touching and all(c.title.lower() in told for c in touching)
    assert found[2].startswith("Steps at equal batch size, relative to sparsity 0: ")


def test_fits_recover_what_was_put_in():
    found = curves_of(Sweep())
    fits = {found.title(key): fit for key, fit in found.fits.items()}
    assert set(fits) == {"sparsity 0", "sparsity 0.9"}
    fit = fits["sparsity 0"]
    # The best of 16 random points is a little slower than the law of the best rate.
    c1, c2 = law_of("sgd", 0.0)
    assert fit.c1.value == pytest.approx(c1, rel=0.15)
    assert fit.c2.value == pytest.approx(c2, rel=0.25)


def test_names_hold_what_tells_curves_apart_and_no_more():
    assert curves_of(SMALL).line_styles.keys() == {"sgd"}
    both = dataclasses.replace(SMALL, optimizers=("sgd", "nesterov"))
    styles = curves_of(both).line_styles
    assert list(styles) == ["sgd", "nesterov"]
    close = dataclasses.replace(
        SMALL, sparsities=(0.9995, 0.9999999), batch_sizes=(64,), points=2
    )
    assert list(curves_of(close).line_styles) == [
        "sparsity 0.9995",
        "sparsity 0.9999999",
    ]
    lines = terminal_table(make(close).results).splitlines()[-2:]
    assert [line.split()[1] for line in lines] == ["0.9995", "0.9999999"]
    near = make(close).results.assign(learning_rate=0.99982)
    assert all(" 0.99982 " in line for line in terminal_table(near).splitlines()[-2:])


def test_a_crowd_of_curves_gets_a_panel_per_optimizer():
    crowd = dataclasses.replace(
        SMALL,
        optimizers=("sgd", "momentum", "nesterov"),
        sparsities=(0.0, 0.5, 0.9),
        batch_sizes=(64,),
        points=2,
    )
    named = curves_of(crowd)
    assert named.panels == [
        f"mnist_simple_cnn, {name}" for name in ("sgd", "momentum", "nesterov")
    ]
    assert list(named.line_styles) == ["sparsity 0", "sparsity 0.5", "sparsity 0.9"]


def test_workloads_and_goals_never_share_a_panel():
    second = dataclasses.replace(SMALL, name="other", goal=0.02)
    named = context_of(make(SMALL, second)).curves
    assert named.panels == ["mnist_simple_cnn", "other"]


def test_repeats_give_bars_from_the_least_to_the_greatest():
    found = curves_of(dataclasses.replace(SMALL, seeds=(0, 1, 2))).plot_rows
    assert (found["repeats"] == 3).all()
    assert (found["low"] <= found["steps_to_result"]).all()
    assert (found["steps_to_result"] <= found["high"]).all()
    assert (found["low"] < found["high"]).any()


def test_noise_and_gradient_are_averaged_before_they_are_divided():
    tables = make(dataclasses.replace(SMALL, measured=True))
    found = context_of(tables).curves
    averages = averaged(found, tables.measurements).set_index("batch_size")
    scale = averages["scale"]
    cell = tables.measurements[tables.measurements["batch_size"] == 64]
    cell = cell[cell["trial"] == found.cells.set_index("batch_size")["best_trial"][64]]
    # Trapezoids by hand: what crowds in the first steps counts no more than its steps.
    areas = {}
    for name, rows in cell.groupby("quantity"):
        step, value = (
            rows.sort_values("step")[n].to_numpy(float) for n in ("step", "value")
        )
        areas[name] = sum(
            (step[i + 1] - step[i]) * (value[i] + value[i + 1]) / 2
            for i in range(len(step) - 1)
        )
    expected = areas["noise_trace"] / areas["gradient_square"]
    assert scale[64] == pytest.approx(expected)
    plain = cell[cell["quantity"] == "noise_scale"]["value"].mean()
    assert scale[64] != pytest.approx(plain)
    late = cell.pivot(index="step", columns="quantity", values="value")
    late = late["noise_trace"] / late["gradient_square"]
    half = abs(late.index - late.index.max() / 2).argmin()
    assert averages["at_half"][64] == late.iloc[half]
    assert averages["at_end"][64] == late.iloc[-1]
    shown = noise_table(found, averages.reset_index()).frame
    assert shown["at_end"].iloc[0].key == averages["at_end"].iloc[0]


def test_best_of_n_is_kept_for_every_cell(pair):
    table = best_of_n_table(pair.tables.bounded, pair.tables.studies)
    assert len(table) == 8 * 8 and table["draws"].max() == 8


def test_trials_that_an_oracle_chose_are_not_redrawn():
    tables = make(PAIR)
    learned = tables.studies["batch_size"] == tables.studies["batch_size"].min()
    oracle = tables.studies["oracle"].mask(learned, "keras_tuner.oracles.Bayesian")
    studies = tables.studies.assign(oracle=oracle)
    table = best_of_n_table(tables.bounded, studies)
    assert set(table["batch_size"]) == set(studies["batch_size"][~learned])
    everything = best_of_n_table(tables.bounded, studies.assign(oracle="other"))
    assert everything.empty


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "300 (200, 300]"),
        ({"steps_bound": ">= 100, <= 300", "bracket_low": 0}, "0 to 300 (bounds)"),
        ({"closed": False, "steps_bound": "<= 300"}, "at most 300 so far"),
        ({"steps_to_result": pd.NA, "steps_bound": "> 12000"}, "> 12,000"),
        ({"steps_to_result": pd.NA, "steps_bound": ">= 400"}, ">= 400"),
        ({"steps_to_result": pd.NA, "infeasible": 4}, "all diverged"),
        ({"steps_to_result": pd.NA}, "not reached"),
        ({"steps_to_result": pd.NA, "closed": False}, "none so far"),
    ],
)
def test_steps_are_told_as_far_as_they_are_known(changes, text):
    row = {
        "steps_to_result": 300,
        "bracket_low": 200,
        "steps_bound": "",
        "closed": True,
        "infeasible": 0,
        "trials": 4,
    }
    assert steps_text({**row, **changes}) == text


def test_terminal_table_is_aligned_and_says_common_things_once():
    text = terminal_table(make(PAIR).results)
    head, *lines = text.splitlines()
    assert "optimizer sgd" in head and f"{ERROR} <= 0.03" in head
    assert len(lines) == 1 + 8
    end = lines[0].index("steps_to_result") + len("steps_to_result")
    assert all(line[end - 1] in "t]0123456789" and line[end] == " " for line in lines)
    # Dense before pruned, small batches first.
    assert [line.split()[1] for line in lines[1:5]] == ["8", "16", "64", "256"]


# Warnings.


def test_clean_sweep_has_notes_only():
    clean = Sweep(sparsities=(0.0,), batch_sizes=(8, 16), points=32, interval=25)
    found = [c for c in cautions_of(make(clean)) if not c.is_note]
    assert found == []


def test_removed_biases_are_stated_where_something_was_pruned():
    assert "Pruned networks without biases" in warned(PAIR)
    assert "Pruned networks without biases" not in warned(SMALL)


def test_one_study_per_cell_is_stated_unless_there_are_repeats():
    # Two batch sizes have no fit, which takes most of the time.
    two = dataclasses.replace(SMALL, batch_sizes=(16, 64))
    assert "One study per cell" in warned(two)
    repeated = dataclasses.replace(two, seeds=(0, 1))
    assert "One study per cell" not in warned(repeated)


def test_failed_trials_are_warned_of_with_their_first_error():
    made = make(SMALL)
    trials = made.trials.copy()
    texts = ("failed", "ValueError: no such layer.\nLine 2")
    trials.loc[trials["outcome"] == "censored", ["outcome", "error"]] = texts
    found = cautions_of(loading.tables_of(dataclasses.replace(made, trials=trials)))
    (caution,) = [c for c in found if c.title == "Failed trials"]
    assert caution.text.endswith("The first error: ValueError: no such layer.")


def test_coarse_evaluation_is_warned_of():
    coarse = dataclasses.replace(SMALL, interval=200)
    (found,) = [c for c in cautions_of(make(coarse)) if c.title == "Coarse evaluation"]
    assert any("batch size 256" in cell for cell in found.cells)


def test_winners_that_are_alone_in_most_cells_are_the_searchs_doing():
    tables = make(SMALL)

    def found(*alone):
        results = tables.results.assign(lone_winner=pd.array(alone, dtype="boolean"))
        return cautions_of(dataclasses.replace(tables, results=results))

    (one,) = [c for c in found(True, False, None) if "alone" in c.title]
    assert one.cells == ("sgd, batch size 16",)
    most = found(True, True, None)
    assert "The winner is alone" not in titles(most)
    (coarse,) = [c for c in most if c.title == "A coarse search"]
    assert coarse.text.startswith("In 2 of 3 cells K_(2)") and not coarse.cells


@pytest.mark.parametrize(
    "steps,title",
    [
        ([100, 150, 200, 400, 800], "K* rises with the batch size"),
        ([6400, 3200, 51200, 800, 400], "K* far from its fit"),
        ([9000, 6400, 4500, 3200, 2300], "The exponent may not be 1"),
    ],
)
def test_curves_that_the_law_does_not_fit_are_warned_of(steps, title):
    sizes = (8, 16, 32, 64, 128)
    tables = make(dataclasses.replace(SMALL, batch_sizes=sizes, points=4))

    def warned_of(high):
        results = tables.results.assign(steps_to_result=high, bracket_low=high - 10)
        return titles(cautions_of(dataclasses.replace(tables, results=results)))

    assert title in warned_of(np.array(steps))
    assert title not in warned_of(40_000 // np.array(sizes) + 300)


def test_unequal_numbers_of_trials_are_warned_of():
    tables = make(SMALL)
    results = tables.results.copy()
    results.loc[0, ["trials", "censored"]] = [7, results.loc[0, "censored"] - 1]
    found = cautions_of(dataclasses.replace(tables, results=results))
    assert "Unequal numbers of trials" in titles(found)
    assert "Unequal numbers of trials" not in warned(SMALL)


def test_boundary_is_named_with_its_cells():
    tables = make(SMALL)
    results = tables.results.assign(at_boundary=["learning_rate", "", ""])
    changed = dataclasses.replace(tables, results=results)
    (caution,) = [c for c in cautions_of(changed) if "boundary" in c.title]
    assert caution.title == "Best learning_rate at the boundary"
    assert caution.cells == ("sgd, batch size 16",)
    # It is drawn as the bound that it is in fits; a median, where it falls with it.
    cells = context_of(changed).curves.cells
    for seeds, bound in ((1, "<="), (2, "<="), (3, "")):
        others = [cells.assign(seed=seed, at_boundary="") for seed in range(1, seeds)]
        rows = curves.plot_rows_of(pd.concat([cells, *others]))
        assert rows["bound"].tolist() == [bound, "", ""]


def test_emptied_layers_and_missed_sparsity_are_warned_of():
    made = make(dataclasses.replace(PAIR, batch_sizes=(64,)))
    emptied = made.trials["layers"].str.replace(
        '"emptied": false', '"emptied": true', n=1
    )
    trials = made.trials.assign(layers=emptied, realised_sparsity=0.8)
    tables = loading.tables_of(dataclasses.replace(made, trials=trials))
    found = titles(cautions_of(tables))
    assert "Emptied 1 layer" in found
    assert "Sparsity is not the one asked for" in found


def test_damaged_files_are_told():
    tables = dataclasses.replace(make(SMALL), problems=("x is damaged.",))
    found = cautions_of(tables)
    assert found[0].title == "Damaged files"
    assert "x is damaged." in found[0].text


# Less than a whole sweep.


def test_open_sweep_says_so_and_claims_no_more_than_it_knows(monkeypatch):
    draw_only(monkeypatch, "headline", "table", "law")
    made = make(SMALL)
    still_open = made.studies.assign(closed=False, points=SMALL.points + 1)
    tables = loading.tables_of(dataclasses.replace(made, studies=still_open))
    found = assemble(tables)
    assert found.state.startswith("3 studies of 3 still open")
    assert "Study still open" in titles(found.cautions)
    text = report.terminal_text(found, tables)
    assert "so far" in text and "not finished: 3 studies of 3" in text
    # K* of an open study may still fall, so there is no law yet.
    assert "law" not in [section.name for section in found.sections]


def test_single_run_opens_with_its_curve():
    tables = make(dataclasses.replace(SMALL, batch_sizes=(64,), points=1))
    found = assemble(tables)
    first = found.sections[0]
    assert first.title == "The training curve"
    assert first.illustrations[0].name.startswith("training")
    text = report.terminal_text(found, tables)
    assert text.splitlines()[0].split()[:2] == ["step", ERROR]
    last = tables.curves["step"].max()
    assert f"{last:,}" in text


def test_nobody_reached_the_goal_and_the_report_says_so(tmp_path):
    tables = make(dataclasses.replace(SMALL, step_budget=200))
    found = report.write_report(tables, tmp_path)
    assert "Goal not reached" in titles(found.cautions)
    assert "no K* is known exactly" in found.summary[0]
    assert "> 200" in report.terminal_text(found, tables)


def test_all_trials_diverged_and_the_report_says_so(tmp_path):
    made = make(SMALL)
    trials = made.trials.assign(
        outcome="infeasible",
        steps_to_result=pd.NA,
        bracket_low=pd.NA,
        diverged_step=10,
        end_step=10,
    ).astype({"steps_to_result": "Int64", "bracket_low": "Int64"})
    measurements = made.measurements.iloc[:0]
    tables = loading.tables_of(
        StoredTables(made.studies, trials, made.curves, measurements)
    )
    found = report.write_report(tables, tmp_path)
    assert "all diverged" in report.terminal_text(found, tables)
    assert "Most trials diverged" in titles(found.cautions)


def test_goal_that_records_cannot_answer_shows_bounds():
    tables = make(SMALL).for_goal(0.001)
    assert tables.results["steps_to_result"].isna().all()
    context = context_of(tables)
    figure = headline(context.curves)
    assert "Hollow marks are bounds" in figure.caption
    assert '"at least ' in figure.chart and "bracket (" not in figure.chart


# What may be wished for beside.


def test_published_curves_are_on_the_chart_with_entries_and_are_fitted():
    published = read_published("shallue2019/published.csv", ["mnist*cnn*sgd"])
    context = dataclasses.replace(context_of(make(SMALL)), published=published)
    figure = headline(context.curves, published)
    [name] = {*published["curve"]}
    entries = re.findall(r'"name": "LegendItem".*?"value": "(.*?)"', figure.chart)
    assert entries == ["sgd", f"{name} (published)"]
    # Its points are on the chart, and in the words beside the picture.
    sizes = json.dumps(published["batch_size"].tolist())[1:-1]
    assert sizes in figure.chart
    first, *_, last = (
        f"{row['steps_to_result']:,.0f} at {row['batch_size']}"
        for row in published.to_dict("records")
    )
    assert f"{name} (published): {first} to {last}." in figure.alt
    assert "Small marks: published curves." in figure.caption
    assert headline(context.curves).svg != figure.svg
    [table] = published_part(context).tables
    assert list(table.frame["curve"]) == [name]


def test_the_law_states_the_noise_of_k_star_and_its_source(pair):
    law = next(s for s in pair.report.sections if s.name == "law")
    [noise] = [text for text in law.paragraphs if text.startswith("The noise")]
    assert re.search(r"is 0\.\d+ octaves \(95 % interval 0\.\d+ to 0\.\d+ oct", noise)
    assert "spacings of first finishers" in noise


def test_ratios_that_are_nearly_one_are_one_number():
    rows = dataclasses.replace(SMALL, optimizers=("sgd", "nesterov"), points=2)
    results = make(rows).results.sort_values("optimizer")
    results["steps_to_result"] = [1000, 1000, 1000, 1000, 1003, 1004]
    results = results.assign(steps_bound="", at_boundary="", bracket_low=990)
    text = summary(ReportContext(make(rows), curves.curves_of(results), ()))[-1]
    assert "relative to sgd: 1.00 times the steps for nesterov." in text


def test_sentences_never_divide_by_a_missing_point():
    text = summary(context(dataclasses.replace(SMALL, step_budget=500)))
    assert len(text) == 1
    assert text[0].endswith("at batch size 256. 2 batch sizes without a K*.")
