"""Writes numbers, intervals and lists for sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pandas as pd


def steps(value: float) -> str:
    """Returns a number of steps with thousands separated.

    >>> steps(12000.0)
    '12,000'
    """
    return f"{value:,.0f}"


def p_text(p: float) -> str:
    """Returns a p-value as text; below 0.001 the text is a bound.

    A p-value that is nearly 0.05 has the digits that show its side.

    >>> p_text(0.03456), p_text(0.0498), p_text(1e-9)
    ('0.035', '0.0498', 'below 0.001')
    """
    if p < 0.001:
        return "below 0.001"
    texts = [f"{p:.{digits}g}" for digits in (2, 3, 4)]
    return next((text for text in texts if float(text) != 0.05), texts[-1])


def number(value: float, digits: int = 3) -> str:
    """Returns a number with some significant digits; 1e-4 to 1e7 without exponent.

    >>> number(23476.97), number(0.0123456), number(math.inf), number(512.0)
    ('23,500', '0.0123', 'infinity', '512')
    """
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    if float(value).is_integer() and abs(value) < 10**digits:
        return f"{value:,.0f}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return f"{rounded:,.{max(places, 0)}f}" if places > 0 else f"{rounded:,.0f}"


def exact(value: float) -> str:
    """Returns a number with all digits if it is whole, as `number` does otherwise.

    >>> exact(2048.0), exact(2048.5)
    ('2,048', '2,050')
    """
    return f"{value:,.0f}" if float(value).is_integer() else number(value)


def setting(value: float) -> str:
    """Returns a metaparameter as `number` does; none below 1 is rounded up to 1.

    >>> setting(0.9), setting(0.999824), setting(0.00321)
    ('0.900', '0.999824', '0.00321')
    """
    text = number(value)
    return f"{1 - float(f'{1 - value:.3g}'):.12g}" if text == "1.000" else text


def interval(low: float, high: float, digits: int = 3) -> str:
    """Returns the ends of an interval; 0 and infinity are open ends.

    >>> interval(87.4, 118.65), interval(40.0, math.inf), interval(0.0, 12.0)
    ('87.4 to 119', 'at least 40', 'at most 12')
    """
    if low == 0 and math.isinf(high):
        return "unknown"
    if math.isinf(high):
        return f"at least {number(low, digits)}"
    if low == 0:
        return f"at most {number(high, digits)}"
    return f"{number(low, digits)} to {number(high, digits)}"


def digits_known(low: float, high: float) -> int:
    """Returns how many digits of a value to show, given the ends of its interval.

    Three where the ends are at most 5 % apart, else two.

    >>> digits_known(98.0, 102.0), digits_known(80.0, 120.0), digits_known(0.0, 5.0)
    (3, 2, 2)
    """
    return 3 if low > 0 and high <= 1.05 * low else 2


def with_interval(
    value: float, low: float, high: float, digits: int | None = None
) -> str:
    """Returns a value with its interval; where an end is open, the bound alone.

    Both have so many significant digits, by default as many as `digits_known` says.

    >>> with_interval(23476.97, 19012.0, 28111.0), with_interval(21.37, 0.0, 43.2)
    ('23,000 (19,000 to 28,000)', 'at most 43')
    """
    digits = digits or digits_known(low, high)
    ends = interval(low, high, digits)
    is_open = low == 0 or math.isinf(high)
    return ends if is_open else f"{number(value, digits)} ({ends})"


def percent(share: float) -> str:
    """Returns a share as a percentage.

    >>> percent(0.2), percent(0.634)
    ('20 %', '63 %')
    """
    return f"{100 * share:.0f} %"


def count(amount: int, noun: str, plural: str = "") -> str:
    """Returns an amount with its noun.

    >>> count(1, "cell"), count(3, "study", "studies"), count(0, "trial")
    ('1 cell', '3 studies', 'no trials')
    """
    if amount == 1:
        return f"1 {noun}"
    return f"{f'{amount:,}' if amount else 'no'} {plural or noun + 's'}"


def and_list(items: Sequence[str], most: int = 12) -> str:
    """Returns items separated by commas, the last after 'and'; at most `most` items.

    >>> and_list(["a", "b", "c"]), and_list(["a", "b", "c", "d"], most=2)
    ('a, b and c', 'a, b and 2 more')
    """
    shown = [str(item) for item in items]
    if len(shown) > most:
        shown = [*shown[:most], f"{len(shown) - most} more"]
    if len(shown) < 2:
        return "".join(shown)
    return ", ".join(shown[:-1]) + " and " + shown[-1]


def with_panel(title: str, panel: str) -> str:
    """Returns a title with the panel that it belongs to, if one is given.

    >>> with_panel("Training", ""), with_panel("Training", "mnist")
    ('Training', 'Training: mnist')
    """
    return f"{title}: {panel}" if panel else title


def listed(table: pd.DataFrame, text_of: Callable[[dict[Hashable, Any]], str]) -> str:
    """Returns the rows of a table in words, curve by curve: 'a: x, y; b: z'.

    `text_of` returns the text of a row.
    """
    return "; ".join(
        f"{name}: {', '.join(text_of(row) for row in rows.to_dict('records'))}"
        for name, rows in table.groupby("curve", sort=False)
    )
