"""Steps-to-result of neural-network training against batch size and sparsity.

`sweep(...)` makes a sweep of gin files and Python values and `run(sweep, sweep_dir)`
trains it; `load(sweep_dir)` returns its tables and `load_trial(sweep_dir, cell)` a
trained model. `fit_table(frame)` fits c1/B + c2 to any table, and `plot_collapsed` and
`plot_critical` draw its curves. `StepsToResult` is the Keras callback that finds the
first step at which a model meets a `Goal`; the `register_*` functions add names that
gin files can use. Each is imported when it is first used, so `import dps_tf` is quick
and does not load TensorFlow.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# TensorFlow reads this variable once, at its import, so it is set before all imports.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

if TYPE_CHECKING:
    from dps_tf.analysis.fit_table import fit_table as fit_table
    from dps_tf.analysis.recommend import predict as predict
    from dps_tf.analysis.report.many_curves import plot_collapsed as plot_collapsed
    from dps_tf.analysis.report.many_curves import plot_critical as plot_critical
    from dps_tf.cli.notebook import load as load
    from dps_tf.cli.notebook import load_trial as load_trial
    from dps_tf.cli.notebook import run as run
    from dps_tf.core import Goal as Goal
    from dps_tf.data import register as register_dataset
    from dps_tf.models import register as register_network
    from dps_tf.objectives import register as register_objective
    from dps_tf.objectives import register_metric as register_metric
    from dps_tf.optim import register as register_optimizer
    from dps_tf.optim import register_schedule as register_schedule
    from dps_tf.sparsity import register_selection as register_selection
    from dps_tf.sparsity import register_sparsity_method as register_sparsity_method
    from dps_tf.training import StepsToResult as StepsToResult
    from dps_tf.tuning.backends import register_backend as register_backend
    from dps_tf.workloads.reading import configure as sweep

__version__ = "0.1.0"
__all__ = [
    "Goal",
    "StepsToResult",
    "__version__",
    "fit_table",
    "load",
    "load_trial",
    "plot_collapsed",
    "plot_critical",
    "predict",
    "register_backend",
    "register_dataset",
    "register_metric",
    "register_network",
    "register_objective",
    "register_optimizer",
    "register_schedule",
    "register_selection",
    "register_sparsity_method",
    "run",
    "sweep",
]

_LAZY = {
    "Goal": ("dps_tf.core.goal", "Goal"),
    "load": ("dps_tf.cli.notebook", "load"),
    "load_trial": ("dps_tf.cli.notebook", "load_trial"),
    "predict": ("dps_tf.analysis.recommend", "predict"),
    "fit_table": ("dps_tf.analysis.fit_table", "fit_table"),
    "plot_collapsed": ("dps_tf.analysis.report.many_curves", "plot_collapsed"),
    "plot_critical": ("dps_tf.analysis.report.many_curves", "plot_critical"),
    "run": ("dps_tf.cli.notebook", "run"),
    "sweep": ("dps_tf.workloads.reading", "configure"),
    "StepsToResult": ("dps_tf.training.callback", "StepsToResult"),
    "register_backend": ("dps_tf.tuning.backends", "register_backend"),
    "register_dataset": ("dps_tf.data", "register"),
    "register_network": ("dps_tf.models", "register"),
    "register_metric": ("dps_tf.objectives", "register_metric"),
    "register_objective": ("dps_tf.objectives", "register"),
    "register_optimizer": ("dps_tf.optim", "register"),
    "register_schedule": ("dps_tf.optim", "register_schedule"),
    "register_selection": ("dps_tf.sparsity", "register_selection"),
    "register_sparsity_method": ("dps_tf.sparsity", "register_sparsity_method"),
}
_WITHOUT_TENSORFLOW = (
    "dps_tf.core.",
    "dps_tf.cli.",
    "dps_tf.analysis.",
    "dps_tf.tuning.backends",
)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dps_tf' has no attribute {name!r}")
    import importlib

    module, attribute = _LAZY[name]
    if not module.startswith(_WITHOUT_TENSORFLOW):
        # Hides TensorFlow's start-up lines, which `help` would show first.
        importlib.import_module("dps_tf._tensorflow").import_tensorflow()
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
