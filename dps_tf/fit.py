"""Fits K* = c1/B + c2 to any table: `python -m dps_tf.fit --csv=F [--json]`.

The table needs the columns batch_size and steps_to_result. With bracket_low, K* is only
known to lie above it (the evaluation before), and a row without steps_to_result is a
lower bound; without, K* counts as exact. With noise (octaves), noisy rows weigh less.
With run, rows of one batch size are trainings that only chance tells apart: K* is their
median, with its standard error as noise. With seed, rows of one seed share a shift.
With curve, each name is a curve of its own, and their c1 and c2 are compared. With
unit, a curve says what its batch sizes count. A results.csv of this package can be
given as it is.

Printed are fits with intervals, residuals, the exponent of the batch size and the ends
of perfect scaling and of useful batch sizes, and ratios of curves. More than three
curves are one table; --curve names the curves that are printed in full.
"""

from __future__ import annotations

import json

from absl import flags

from dps_tf.cli import flags as common
from dps_tf.cli.command_line import FINISHED, command
from dps_tf.core import printable

common.section("What is fitted")
_CSV = flags.DEFINE_string(
    "csv", None, "A table with the columns batch_size and steps_to_result."
)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
_CURVES = flags.DEFINE_multi_string(
    "curve", [], "Curve to print in full, of many; may be repeated."
)
common.section("How it is fitted")
_LEVEL = flags.DEFINE_float("level", 0.95, "Nominal coverage of the intervals.")
_MARGIN = flags.DEFINE_float(
    "margin", 1.25, "Factor within which two curves count as equal."
)
_REFERENCE = flags.DEFINE_string(
    "reference", None, "Curve to which ratios are taken; the first by default."
)


@command
def main() -> int:
    """Prints the fits of a table; returns the exit code."""
    common.require(_CSV)
    # After the flags are checked: SciPy takes seconds to load.
    from dps_tf.analysis.fit_table import FitSettings, fit_table, read_table, text_of

    settings = FitSettings(_LEVEL.value, _MARGIN.value)
    fitted = fit_table(read_table(_CSV.value), settings, _REFERENCE.value)
    if _JSON.value:
        print(json.dumps(fitted.to_json(), indent=1, allow_nan=False))
    else:
        print(printable(text_of(fitted, _CURVES.value)))
    return FINISHED


if __name__ == "__main__":
    main()
