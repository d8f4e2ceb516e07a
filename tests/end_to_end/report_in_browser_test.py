"""The report in a browser: it renders, asks for nothing, and works by keyboard."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from dps_tf.analysis import loading, report
from dps_tf.analysis.published import read_published
from dps_tf.store import StoredTables
from tests.end_to_end.browser import Page, browser, executable
from tests.made_up.sweeps import Sweep, make

CHROMIUM = executable()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

TAB, ENTER, SPACE = ("Tab", 9, ""), ("Enter", 13, "\r"), (" ", 32, " ")
STEPS = "#table-results tbody tr td:nth-child(3)"
CONTROLS = "a[href], button, summary, input, select, [tabindex='0']"
FRAME = "new Promise(done => requestAnimationFrame(() => done(1)))"
HEADER = "#table-results thead th:nth-child(3)"


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    made = make(Sweep(batch_sizes=(8, 32, 128), points=8))
    failed = made.trials["outcome"].replace("censored", "failed")
    trials = made.trials.assign(outcome=failed)
    record = StoredTables(made.studies, trials, made.curves, made.measurements)
    evil = loading.SweepRecord("sweeps/<b>x", "</pre><script>alert(1)</script>")
    folder = tmp_path_factory.mktemp("report")
    published = read_published("shallue2019/published.csv", ["mnist*cnn*sgd"])
    report.write_report(loading.tables_of(record, sweeps=(evil,)), folder, published)
    return folder / "report.html"


@pytest.fixture(scope="module")
def page(file, tmp_path_factory) -> Iterator[Page]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as opened:
        opened.resize(1200, 900)
        opened.open(file)
        yield opened


def keys(page: Page, column: str) -> list[float]:
    return page.value(
        f"[...document.querySelectorAll({column!r})]"
        ".map(c => c.dataset.key === '' ? Infinity : Number(c.dataset.key))"
        ".map(x => Number.isFinite(x) ? x : 1e300)"
    )


def test_no_error_and_no_request_beyond_the_file(page, file):
    assert page.value("document.documentElement.dataset.ready") == "true"
    assert page.complaints == []
    asked = [url for url in page.requests if not url.startswith("data:")]
    assert asked == [file.as_uri()]


def test_every_figure_renders(page):
    # Folded ones too: they are loaded, if not laid out.
    sizes = page.value(
        "[...document.images].map(i => [i.complete, i.naturalWidth, i.naturalHeight])"
    )
    assert len(sizes) >= 8
    assert all(done and width > 100 and height > 50 for done, width, height in sizes)


def test_injected_code_does_not_run(page):
    running = "document.querySelectorAll('script:not([type])').length"
    assert page.value(running) == 2
    assert "<script>alert(1)" in page.value("document.body.textContent")


def test_charts_are_not_blank(page):
    explored(page, 0)
    scroll_to(page, "#figure-steps_to_result .chart")
    picture = Image.open(io.BytesIO(page.picture())).convert("RGB")
    assert picture.size == (1200, 900)
    colors = picture.getcolors(maxcolors=1 << 24)
    assert colors is not None and len(colors) > 50
    # The first curve of the headline figure, in its own colour.
    assert any(max(abs(a - b) for a, b in zip(color, (0, 114, 178), strict=True)) < 8
               for _, color in colors)  # fmt: skip


def test_table_is_sorted_by_the_keyboard_and_says_so(page):
    page.value(f"document.querySelector({HEADER + ' button'!r}).focus()")
    page.press(*ENTER)
    state = f"document.querySelector({HEADER!r}).getAttribute('aria-sort')"
    assert page.value(state) == "ascending"
    assert keys(page, STEPS) == sorted(keys(page, STEPS))
    page.press(*SPACE)
    assert page.value(state) == "descending"
    known = [key for key in keys(page, STEPS) if key < 1e300]
    assert known == sorted(known, reverse=True)
    # What is missing stays last in either order.
    assert keys(page, STEPS)[: len(known)] == known
    sorted_by = page.value(
        "document.querySelectorAll('#table-results [aria-sort]:not([aria-sort=none])')"
        ".length"
    )
    assert sorted_by == 1


def test_every_control_is_reached_by_tab_and_shows_its_focus(page, file):
    # Opened anew: the keyboard goes on from where it was last.
    page.open(file)
    seen = []
    wanted = page.value(
        f"[...document.querySelectorAll({CONTROLS!r})]"
        ".filter(e => e.checkVisibility()).length"
    )
    for _ in range(wanted):
        page.press(*TAB)
        seen.append(
            page.value(
                "(() => { const e = document.activeElement, s = getComputedStyle(e);"
                " return [e.tagName, e.textContent.slice(0, 30),"
                " s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0]; })()"
            )
        )
    assert seen[0][:2] == ["A", "Skip to the content"]
    assert [entry for entry in seen if not entry[2]] == []
    assert len({tuple(entry[:2]) for entry in seen}) > 15


def test_skip_link_leads_to_the_content(page, file):
    page.open(file)
    page.press(*TAB)
    page.press(*ENTER)
    assert page.value("document.activeElement.id") == "main"


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_page_never_scrolls_sideways(page, width):
    page.resize(width, 800, phone=width < 500)
    page.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    try:
        assert page.value("document.documentElement.scrollWidth") <= width
        # Wide tables scroll in a frame of their own instead.
        if width < 500:
            assert page.value(
                "[...document.querySelectorAll('.scroll')]"
                ".some(e => e.scrollWidth > e.clientWidth)"
            )
    finally:
        page.value(
            "document.querySelectorAll('details').forEach(d => { d.open = false; })"
        )
        page.resize(1200, 900)


def test_phone_shows_the_chart_and_tables_in_the_width_of_the_screen(page, file):
    page.resize(390, 800, phone=True)
    page.open(file)
    explored(page, 0)
    inside = (
        "e => { const r = e.getBoundingClientRect();"
        " return r.left >= 10 && r.right <= 380; }"
    )
    for what in (
        ".chart canvas",
        "#table .scroll",
        "#figure-steps_to_result figcaption",
    ):
        assert page.value(
            f"[...document.querySelectorAll({what!r})].slice(0, 2).every({inside})"
        )
    # Entries of the legend stand below one another, inside the chart.
    legend = (
        "Bokeh.index.roots[0].model.children[0].below.find(e => e.type === 'Legend')"
    )
    assert page.value(f"{legend}.ncols") == 1
    box = f"Bokeh.index.find_one_by_id({legend}.id).bbox"
    assert page.value(f"{box}.left >= 0 && {box}.right <= 390 - 28")
    page.resize(1200, 900)


def test_text_has_enough_contrast_in_both_schemes(page):
    # Relative luminance and contrast of WCAG 2, on what is painted behind the text.
    script = """
    (() => {
      const parts = c => c.match(/[\\d.]+/g).map(Number);
      const light = c => parts(c).slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const behind = e => {
        for (; e; e = e.parentElement) {
          const c = getComputedStyle(e).backgroundColor;
          if (parts(c)[3] !== 0) return c;
        }
        return 'rgb(255, 255, 255)';
      };
      const bad = [];
      for (const e of document.querySelectorAll(
          'p, li, th, td, a, summary, figcaption, dt, dd, h1, h2, h3, strong, ' +
          'button')) {
        if (!e.checkVisibility()) continue;
        const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) bad.push([e.tagName, e.textContent.slice(0, 20), ratio]);
      }
      return bad;
    })()
    """
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        assert page.value(script) == [], scheme
    page.prefer("light")


def scroll_to(page: Page, selector: str) -> None:
    page.value(
        f"document.querySelector({selector!r})"
        ".scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    page.value(FRAME)


def explored(page: Page, number: int) -> str:
    """Draws a chart and returns the expression of its plot."""
    found = f"[...document.querySelectorAll('.chart')][{number}].closest('figure')"
    # What is folded is drawn once it is opened.
    page.value(
        f"{found}.closest('details') && ({found}.closest('details').open = true)"
    )
    page.value(
        f"{found}.closest('.section') && ({found}.closest('.section').open = true)"
    )
    page.value(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    drawn = (
        "new Promise(done => { const look = () => "
        f"{found}.dataset.drawn ? done(1) : setTimeout(look, 50); look(); }})"
    )
    page.value(drawn)
    root = f"Bokeh.index.roots.find(view => {found}.contains(view.el)).model"
    return f"({root}.children?.[0] ?? {root})"


def test_charts_are_drawn_without_a_complaint(page, file):
    page.open(file)
    charts = page.value("document.querySelectorAll('.chart').length")
    for number in range(charts):
        explored(page, number)
    assert page.complaints == []
    # K* with its regimes, and the learning curves of two curves.
    assert charts == 3
    # The picture stands back for print and for browsers without scripts.
    shown = "document.querySelector('#figure-steps_to_result img').checkVisibility()"
    assert page.value(shown) is False
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.value(shown) is True
    page.call("Emulation.setEmulatedMedia", media="")


def test_the_legend_hides_a_curve_and_shows_it_again(page, file):
    page.open(file)
    model = explored(page, 0)
    legend = f"{model}.below.find(item => item.type === 'Legend')"
    visible = f"{legend}.items[0].renderers.map(item => item.visible)"
    assert page.value(visible) and all(page.value(visible))
    # Where the first entry of the legend is drawn.
    x, y = page.value(
        f"(() => {{ const view = Bokeh.index.find_one_by_id({legend}.id);"
        " const item = view.shadow_el.querySelector('.bk-item') ?? view.el;"
        " const r = item.getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    for hidden in (True, False):
        for kind in ("mousePressed", "mouseReleased"):
            page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                      clickCount=1)  # fmt: skip
        page.value("new Promise(done => setTimeout(() => done(1), 300))")
        assert page.value(visible) == [not hidden] * len(page.value(visible))


def test_published_curves_have_an_entry_of_the_legend_and_their_points(page, file):
    page.open(file)
    model = explored(page, 0)
    legend = f"{model}.below.find(item => item.type === 'Legend')"
    entries = page.value(f"{legend}.items.map(item => item.label.value)")
    assert [name for name in entries if name.endswith("(published)")] == entries[-1:]
    drawn = f"{legend}.items.at(-1).renderers[1].data_source.data.x"
    assert page.value(f"Array.from({drawn})")[:3] == [1, 2, 4]


def test_another_cell_shows_its_trials(page, file):
    page.open(file)
    model = explored(page, 1)
    marks = f"{model}.renderers.filter(r => (r.name ?? '').startsWith('marks '))"
    held = f"{marks}.flatMap(r => Array.from(r.data_source.data.y))"
    assert page.value(held) == []
    page.value(
        "(() => { const choice = document.querySelector('.choice select');"
        " choice.value = '2'; choice.dispatchEvent(new Event('change')); })()"
    )
    second = page.value(held)
    assert second
    cells = "JSON.parse(document.querySelector('script.trials').textContent)"
    values = page.value(f"{cells}[2].trials.flatMap(t => t.values)")
    assert sorted(second) == sorted(values)


def test_rows_are_filtered_as_one_types(page, file):
    page.open(file)
    page.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.value("document.querySelector('.filter input').focus()")
    name = page.value("document.activeElement.dataset.table")
    rows = f"[...document.getElementById({name!r}).tBodies[0].rows]"
    every = page.value(f"{rows}.length")
    page.call("Input.insertText", text="128")
    shown = page.value(f"{rows}.filter(r => !r.hidden).map(r => r.textContent)")
    assert 0 < len(shown) < every and all("128" in text for text in shown)
    assert page.value(f"document.querySelector('[data-count={name}]').textContent") == (
        f"{len(shown)} of {every} rows"
    )


def test_dark_figures_have_no_white_plate(page, file):
    page.open(file)
    page.prefer("dark")
    explored(page, 0)
    scroll_to(page, "#figure-steps_to_result .chart")
    box = page.value(
        "(() => { const r = document.querySelector('#figure-steps_to_result .chart')"
        ".getBoundingClientRect(); return [r.x, r.y, r.right, r.bottom]; })()"
    )
    picture = Image.open(io.BytesIO(page.picture())).convert("L")
    inside = picture.crop((int(box[0]), max(0, int(box[1])), int(box[2]), 900))
    histogram = inside.histogram()
    assert sum(histogram[:64]) > 0.8 * sum(histogram)
    page.prefer("light")


def test_printed_page_shows_what_is_folded(page):
    page.value("window.dispatchEvent(new Event('beforeprint'))")
    assert page.value("document.querySelectorAll('details:not([open])').length") == 0
    page.value("window.dispatchEvent(new Event('afterprint'))")
    assert page.value("document.querySelectorAll('details:not([open])').length") > 0
    pdf = page.call("Page.printToPDF", printBackground=False)["data"]
    assert len(pdf) > 50_000
