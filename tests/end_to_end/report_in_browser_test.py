"""The report in a browser: it renders, asks for nothing, and works by keyboard."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from dps_tf.analysis import loading, report
from tests.analysis.synthetic_tables import Sweep, make
from tests.end_to_end.browser import Page, browser, executable

CHROMIUM = executable()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

TAB, ENTER, SPACE = ("Tab", 9, ""), ("Enter", 13, "\r"), (" ", 32, " ")
STEPS = "#table-results tbody tr td:nth-child(3)"
CONTROLS = "a[href], button, summary, [tabindex='0']"
FRAME = "new Promise(done => requestAnimationFrame(() => done(1)))"
HEADER = "#table-results thead th:nth-child(3)"


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    made = make(Sweep(batch_sizes=(8, 32, 128), points=8, failed=1))
    record = loading.Record(made.studies, made.trials, made.curves, made.measurements)
    evil = loading.SweepRecord("sweeps/<b>x", "</pre><script>alert(1)</script>")
    folder = tmp_path_factory.mktemp("report")
    report.write_report(loading.tables_of(record, sweeps=(evil,)), folder)
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
    assert page.value("document.querySelectorAll('script').length") == 1
    assert "<script>alert(1)" in page.value("document.body.textContent")


def test_pictures_are_not_blank(page):
    page.value("window.scrollTo(0, 0)")
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
    assert len({tuple(entry[:2]) for entry in seen}) > 20


def test_skip_link_leads_to_the_content(page, file):
    page.open(file)
    page.press(*TAB)
    page.press(*ENTER)
    assert page.value("document.activeElement.id") == "main"


def test_pointing_at_a_mark_tells_its_numbers(page):
    page.value(
        "document.querySelector('.tooltip')"
        ".scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    # Scrolling hides what is shown: let it come to rest.
    page.value(FRAME)
    page.value(FRAME)
    box = page.value(
        "(() => { const r = document.querySelector('.tooltip').getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    shown = page.value("[tip.hidden, tip.textContent]")
    assert shown[0] is False
    assert "batch size 8" in shown[1]
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
    assert page.value("tip.hidden") is True


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


def test_phone_gets_a_headline_of_its_own_in_the_width_of_the_screen(page):
    source = "document.images[0].currentSrc.length"
    desktop = page.value(source)
    page.resize(390, 800, phone=True)
    assert page.value(source) != desktop
    until = "new Promise(done => document.images[0].decode().then(() => done(1)))"
    page.value(until)
    assert page.value("document.images[0].naturalWidth") < 500
    assert page.value("document.images[0].getBoundingClientRect().right") <= 390
    page.resize(1200, 900)


def test_colours_follow_the_reader(page):
    def background() -> list[int]:
        color = page.value("getComputedStyle(document.body).backgroundColor")
        return [int(part) for part in color.strip("rgb()").split(",")]

    page.prefer("dark")
    assert max(background()) < 64
    page.prefer("light")
    assert min(background()) > 240


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


def test_printed_page_shows_what_is_folded(page):
    page.value("window.dispatchEvent(new Event('beforeprint'))")
    assert page.value("document.querySelectorAll('details:not([open])').length") == 0
    page.value("window.dispatchEvent(new Event('afterprint'))")
    assert page.value("document.querySelectorAll('details:not([open])').length") > 0
    pdf = page.call("Page.printToPDF", printBackground=False)["data"]
    assert len(pdf) > 50_000
