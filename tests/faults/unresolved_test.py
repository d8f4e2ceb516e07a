"""What the data leave open is drawn, said and recommended by no value.

Curves are generated whose c1, or c2, is not told apart from 0. Of c1/c2 and of the ends
of regimes the table then has one end, and figure, sentences and recommendation have
nothing that the table has not.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.law import Estimate, Observations, fit_law
from dps_tf.analysis.recommend import recommend
from dps_tf.analysis.regimes import batch_size_text, ends
from dps_tf.analysis.report.content import estimate_text
from dps_tf.analysis.report.regimes import critical_mark, spans

SIZES = 2.0 ** np.arange(3, 12)
TIMES = pd.DataFrame({"batch_size": SIZES, "devices": 1, "seconds": 0.01 + SIZES / 1e4})


def curve(kind, seed):
    """Returns a flat curve, one that only falls, or one with both parts."""
    rng = np.random.default_rng(seed)
    c1, c2 = {"flat": (0, 200), "falling": (4e4, 0), "both": (4e4, 300)}[kind]
    scatter = 2 ** rng.normal(0, 0.12, len(SIZES))
    return Observations.of(SIZES, (c1 / SIZES + c2) * scatter)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["flat", "falling", "both"])
def test_all_follow_the_end_that_the_table_states(kind, seed):
    fit = fit_law(curve(kind, seed))
    found = ends(fit)
    mark, drawn = critical_mark(found), spans(found)
    critical, smallest = fit.critical_batch_size, SIZES.min()
    said = found.by_fit
    table = estimate_text(critical).text
    recommended = recommend(fit.observations, TIMES, 1)
    if kind == "both":
        assert not fit.unresolved
        assert mark.marker == "d" and mark.at == pytest.approx(critical.value)
        assert {"perfect", "diminishing"} <= {name for *_, name in drawn}
        assert not recommended.abstains
        return
    assert fit.unresolved == {"c1" if kind == "flat" else "c2"}
    assert "diminishing" not in {name for *_, name in drawn}
    value = rf"\b{batch_size_text(Estimate(critical.value, 1, 2), 0).split()[0]}\b"
    assert not re.search(value, said)
    if kind == "flat":
        assert table.startswith("at most")
        assert mark.marker == "<"
        assert mark.at == max(critical.high, smallest)
        # Flat is what lies above the greatest end of the interval, if anything does.
        flat = [start for start, _, name in drawn if name == "flat"]
        assert flat in ([], [max(5 * critical.high, smallest)])
        assert not [name for *_, name in drawn if name == "perfect"]
        assert "no slope is resolved" in str(recommended)
        assert "c1/c2 is at most" in str(recommended)
    else:
        assert table.startswith("at least")
        assert (mark.marker, mark.at) == (">", min(critical.low, SIZES.max()))
        [(start, end, name)] = drawn
        assert (start, name) == (smallest, "perfect")
        assert end == pytest.approx(np.clip(0.2 * critical.low, smallest, SIZES.max()))
        assert (
            np.isnan(
                recommended.choices.set_index("choice").loc["efficient", "batch_size"]
            )
            or recommended.abstains
        )


def test_a_curve_that_nothing_bounds_has_no_mark():
    found = ends(fit_law(curve("both", 0)))
    unknown = Estimate(found.critical.value, 0.0, np.inf)
    found = dataclasses.replace(found, critical=unknown, is_flat=False)
    assert critical_mark(found) is None and spans(found) == []
    assert "does not say" in found.by_fit


@pytest.mark.parametrize(
    ("low", "high", "marker", "at"),
    [(0.0, 47.5, "<", 47.5), (12.5, np.inf, ">", 12.5), (12.5, 47.5, "d", 20.0)],
)
def test_an_open_end_is_drawn_at_the_other_one(low, high, marker, at):
    """A c1/c2 of at most 47.5 has no diamond at 20, within the measured sizes."""
    found = ends(fit_law(curve("both", 0)))
    open_end = Estimate(20.0, low, high)
    mark = critical_mark(dataclasses.replace(found, critical=open_end, is_flat=False))
    assert (mark.marker, mark.at) == (marker, at)
