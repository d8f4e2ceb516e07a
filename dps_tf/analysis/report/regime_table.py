"""Where does a curve scale perfectly, and where is it flat?"""

from __future__ import annotations

import pandas as pd

from dps_tf.analysis.report.curves import Curves

_COLUMNS = [
    "panel",
    "curve",
    "smallest",
    "perfect_end",
    "useful_end",
    "largest",
    "critical",
    "critical_low",
    "critical_high",
    "tolerance",
    "definition",
]


def regimes_of(curves: Curves) -> pd.DataFrame:
    """Returns the regimes of each curve."""
    return pd.DataFrame(columns=_COLUMNS)
