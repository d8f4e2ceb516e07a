"""What the figures of Shallue et al. 2019 show, panel by panel.

Goals, normalizations, reference batch sizes, orders and limits of axes of Figures 1 to
11 are those of the published notebook. Workloads are named as the archive names them.
Of the batch sizes of figure 9 and the budgets of figure 11 the first and last are
published; those between are powers of two, and 1, 2 and 5 in each decade, which fit
where the published curves of figure 11 end.

What Figures 12 to 24 show is not known from public sources: what the archive allows
beyond has titles and no numbers. Goals on training metrics are those of validation;
scatters are at one batch size of each workload, near the middle of its range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from dps_tf.analysis.report.shallue2019_points import Panel, PublishedFigure
from dps_tf.analysis.report.shallue2019_runs import NESTEROV, Series
from dps_tf.core import Goal

ERROR = "validation/classification_error"
LOSS = "validation/cross_entropy"
LM1B_SENTENCES = 30_301_028
MNIST_IMAGES = 55_000


def error(threshold: float) -> Goal:
    """Returns a strict goal on the validation error."""
    return Goal(ERROR, threshold, inclusive=False)


def loss(threshold: float) -> Goal:
    """Returns a strict goal on the validation cross-entropy."""
    return Goal(LOSS, threshold, inclusive=False)


CNN, FASHION = "mnist-simple_cnn_base", "fashion_mnist-simple_cnn_base"
RESNET8, RESNET50 = "cifar_10-resnet_8", "imagenet-resnet_50"
OPEN_IMAGES, VGG = "open_images_v4-resnet_50", "imagenet-vgg_11"
BASE, CRAWL = "lm1b-transformer_base", "common_crawl-transformer_base"
SHALLOW, WIDE = "lm1b-transformer_shallow", "lm1b-transformer_wide"
NARROW, LSTM = "lm1b-transformer_narrow_and_shallow", "lm1b-lstm"
PRECISION = Goal("validation/average_precision", 0.31, "maximize", inclusive=False)
_SIZES = {"base": BASE, "wide": WIDE, "shallow": SHALLOW, "narrow and shallow": NARROW}

_EACH = tuple(
    Panel(title, (Series(NESTEROV, workload, goal),))
    for title, workload, goal in (
        ("Simple CNN on MNIST", CNN, error(0.01)),
        ("Simple CNN on Fashion-MNIST", FASHION, error(0.1)),
        ("ResNet-8 on CIFAR-10", RESNET8, error(0.3)),
        ("ResNet-50 on ImageNet", RESNET50, error(0.25)),
        ("ResNet-50 on Open Images", OPEN_IMAGES, PRECISION),
        ("Transformer on LM1B", BASE, loss(3.9)),
        ("Transformer on Common Crawl", CRAWL, loss(3.9)),
        ("VGG-11 on ImageNet", VGG, error(0.35)),
        ("LSTM on LM1B", LSTM, loss(3.9)),
    )
)
"""A panel for each workload of Figure 1."""


def _each_with(goal_of: Callable[[Series], Goal]) -> tuple[Panel, ...]:
    """Returns a panel for each workload, with other goals."""
    return tuple(
        replace(panel, series=(replace(series, goal=goal_of(series)),))
        for panel in _EACH
        for series in panel.series
    )


def _goals(title: str, workload: str, metric: str, *levels: float) -> Panel:
    goals = {f"{x:g}": Goal(metric, x, inclusive=False) for x in levels}
    return Panel(title, tuple(Series(s, workload, goal) for s, goal in goals.items()))


def _alike(
    goal: Goal, workloads: Mapping[str, str], optimizer: str = NESTEROV
) -> tuple[Series, ...]:
    """Returns curves of workloads, by their labels, with one goal."""
    named = workloads.items()
    return tuple(Series(label, name, goal, optimizer) for label, name in named)


def _relative(
    title: str, first: int, low: float | None, series: tuple[Series, ...]
) -> Panel:
    # Where the lower end is published, the upper one is 2.
    return Panel(title, series, first, low, high=None if low is None else 1)


def _optimizers(
    title: str, workload: str, goal: Goal, low: float, high: float, *names: str
) -> Panel:
    # The line of perfect scaling is that of Nesterov momentum, which comes first.
    series = (Series(name, workload, goal, name) for name in (NESTEROV, *names))
    return Panel(title, tuple(series), low=low, high=high)


def _scatter(steps: int, epochs: bool, smallest: int) -> tuple[Panel, ...]:
    budget = f"{steps} epoch" if epochs else f"{steps:,} steps"
    return tuple(
        Panel(
            f"B = {size}, {budget}",
            (Series("base", BASE, loss(3.9)),),
            batch_size=size,
            budgets=(steps,),
            epochs=epochs,
            examples=LM1B_SENTENCES,
        )
        for size in (smallest * 2**doubled for doubled in range(6))
    )


def _decades(low: float, high: float) -> tuple[float, ...]:
    """Returns 1, 2 and 5 times the powers of ten between two budgets, ends included."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = (float(f"{digit}e{power}") for power in exponents for digit in (1, 2, 5))
    return tuple(budget for budget in found if low <= budget <= high)


_MNIST_BUDGETS = (_decades(5e3, 5e6), _decades(10, 1e4), MNIST_IMAGES)
_LM1B_BUDGETS = (_decades(1e4, 1e6), _decades(0.2, 20), LM1B_SENTENCES)


def _budgets(
    series: Series,
    limits: tuple[float, float],
    budgets: tuple[tuple[float, ...], tuple[float, ...], int],
) -> tuple[Panel, Panel]:
    steps, epochs, examples = budgets
    shared = Panel(series.label, (series,), examples=examples, limits=limits)
    return (
        replace(shared, title=f"{series.label} (steps)", budgets=steps),
        replace(shared, title=f"{series.label} (epochs)", budgets=epochs, epochs=True),
    )


_SMOOTHINGS = dict.fromkeys(("0", "0.01", "0.1"), RESNET50)
_CNN_AND_FC = {"FC-1024x3": "mnist-fc_1024_1024_1024", "Simple CNN": CNN}
_FC = {
    name.replace("_", "-"): f"mnist-fc_{name}"
    for name in (
        "1024",
        *("_".join([width] * 3) for width in ("128", "256", "512", "1024", "2048")),
    )
}
_CNNS = {name: f"mnist-simple_cnn_{name}" for name in ("base", "narrow", "wide")}
_IMAGE_SETS = (
    Series("ImageNet", RESNET50, error(0.25)),
    Series("Open Images", OPEN_IMAGES, PRECISION),
)
_SMALL_SETS = (
    Series("MNIST", CNN, error(0.01)),
    Series("Fashion-MNIST", FASHION, error(0.1)),
)
_TEXTS = {"LM1B": BASE, "Common Crawl": CRAWL}
_MNIST_SUBSETS = {
    f"{n / 550:g} %": f"mnist_subsets.mnist_{n}-simple_cnn_base"
    for n in (55_000, 27_500, 13_750, 6_875)
}
_HALVES = {
    f"half the {kind}": f"imagenet_subsets.imagenet_half_{kind}-resnet_50"
    for kind in ("images", "classes")
}

FIGURES = (
    PublishedFigure(
        "Steps to result against batch size",
        "steps",
        (*_EACH[:-1], replace(_EACH[-1], low=13.0, high=21.0)),
        number=1,
    ),
    PublishedFigure(
        "Steps to result for several goals",
        "goals",
        (
            _goals("Simple CNN on MNIST", CNN, ERROR, 0.008, 0.01, 0.012, 0.014, 0.016),
            _goals("Transformer on LM1B", BASE, LOSS, 3.8, 3.85, 3.9, 3.95, 4.0, 4.05),
            _goals("ResNet-50 on ImageNet", RESNET50, ERROR, 0.25, 0.27, 0.29, 0.31),
        ),
        number=2,
    ),
    PublishedFigure(
        "Networks of different kind and size",
        "normalized",
        (
            _relative(
                "Fully connected and Simple CNN on MNIST",
                1,
                -11,
                _alike(error(0.03), _CNN_AND_FC, "sgd"),
            ),
            _relative(
                "ResNet-50 and VGG-11 on ImageNet",
                64,
                -9,
                _alike(error(0.35), {"ResNet-50": RESNET50, "VGG-11": VGG}),
            ),
            _relative(
                "Transformer and LSTM on LM1B",
                16,
                -8,
                _alike(loss(3.9), {"Transformer": BASE, "LSTM": LSTM}),
            ),
            _relative(
                "Fully connected on MNIST", 2, -11, _alike(error(0.03), _FC, "sgd")
            ),
            _relative("Simple CNN on MNIST", 2, -11, _alike(error(0.01), _CNNS, "sgd")),
            _relative("Transformers on LM1B", 16, -9, _alike(loss(4.2), _SIZES)),
        ),
        2,
        number=3,
    ),
    PublishedFigure(
        "Optimizers",
        "steps",
        (
            _optimizers(
                "Simple CNN on MNIST", CNN, error(0.01), 4, 17, "momentum", "sgd"
            ),
            _optimizers(
                "Transformer (shallow) on LM1B",
                SHALLOW,
                loss(3.9),
                12,
                22,
                "momentum",
                "sgd",
            ),
            _optimizers("ResNet-8 on CIFAR-10", RESNET8, error(0.3), 7, 18, "sgd"),
        ),
        number=4,
    ),
    PublishedFigure(
        "Data sets",
        "normalized",
        (
            _relative("Simple CNN", 2, None, _SMALL_SETS),
            _relative("ResNet-50", 128, None, _IMAGE_SETS),
            _relative("Transformer", 32, None, _alike(loss(3.9), _TEXTS)),
        ),
        number=5,
    ),
    PublishedFigure(
        "Sizes of the training set",
        "normalized",
        (
            _relative(
                "Simple CNN on subsets of MNIST",
                2,
                -10,
                _alike(error(0.02), _MNIST_SUBSETS),
            ),
            _relative(
                "ResNet-50 on subsets of ImageNet",
                64,
                -10,
                (
                    Series("100 %", RESNET50, error(0.25)),
                    *_alike(error(0.3), _HALVES),
                ),
            ),
        ),
        2,
        number=6,
    ),
    PublishedFigure(
        "Label smoothing, ResNet-50 on ImageNet",
        "smoothing",
        tuple(
            Panel(title, _alike(error(0.25), _SMOOTHINGS))
            for title in ("Best validation error", "Steps to 0.25")
        ),
        2,
        number=7,
    ),
    PublishedFigure(
        "Effective learning rate of the best trial",
        "rates",
        _each_with(lambda s: error(0.3) if s.workload == FASHION else s.goal),
        number=8,
    ),
    PublishedFigure(
        "Which metaparameters reach the goal, Transformer on LM1B",
        "scatter",
        (*_scatter(1, True, 128), *_scatter(25_000, False, 512)),
        number=9,
    ),
    PublishedFigure(
        "Which metaparameters reach the goal, four Transformers at B = 1024",
        "scatter",
        tuple(
            Panel(
                f"Transformer ({series.label})",
                (series,),
                batch_size=1024,
                budgets=(50_000,),
                limits=(1e-4, 1e-1),
            )
            for series in _alike(loss(4.2), _SIZES)
        ),
        2,
        number=10,
    ),
    PublishedFigure(
        "Best validation metric within a budget",
        "budgets",
        (
            *_budgets(
                Series("Simple CNN on MNIST", f"solution_quality.{CNN}", error(0.01)),
                (0.0, 0.04),
                _MNIST_BUDGETS,
            ),
            *_budgets(
                Series(
                    "Simple CNN on Fashion-MNIST",
                    f"solution_quality.{FASHION}",
                    error(0.1),
                ),
                (0.05, 0.2),
                _MNIST_BUDGETS,
            ),
            *_budgets(
                Series("Transformer (narrow and shallow) on LM1B", NARROW, loss(4.2)),
                (4.0, 5.5),
                _LM1B_BUDGETS,
            ),
            *_budgets(
                Series("Transformer (base) on LM1B", BASE, loss(3.9)),
                (3.5, 5.5),
                _LM1B_BUDGETS,
            ),
        ),
        2,
        number=11,
    ),
)
"""Those of the publication whose panels are known, by number."""


_MOMENTUM = _EACH + tuple(
    Panel(title, (Series(optimizer, workload, goal, optimizer),))
    for title, workload, goal, optimizer in (
        ("Simple CNN on MNIST, momentum", CNN, error(0.01), "momentum"),
        ("Transformer (shallow), momentum", SHALLOW, loss(3.9), "momentum"),
        ("Transformer (shallow)", SHALLOW, loss(3.9), NESTEROV),
        ("Transformer (wide)", WIDE, loss(4.2), NESTEROV),
        ("Transformer (narrow and shallow)", NARROW, loss(4.2), NESTEROV),
        *(
            (f"Simple CNN on {share} of MNIST", name, error(0.02), NESTEROV)
            for share, name in _MNIST_SUBSETS.items()
        ),
        *(
            (f"ResNet-50 on {share}", name, error(0.3), NESTEROV)
            for share, name in _HALVES.items()
        ),
    )
)
"""A panel for each workload that was trained with momentum."""


def _scatters() -> tuple[Panel, ...]:
    sizes = dict.fromkeys((CNN, FASHION, *_MNIST_SUBSETS.values()), 512)
    sizes[RESNET8] = 128
    found = []
    for panel in _MOMENTUM:
        size = sizes.get(panel.series[0].workload, 1024)
        title = f"{panel.title}, B = {size}"
        found.append(replace(panel, title=title, batch_size=size, limits=(1e-4, 10.0)))
    return tuple(found)


def _of_training(series: Series) -> Goal:
    metric = series.goal.metric.replace("validation/", "train/")
    return replace(series.goal, metric=metric)


_ON_TRAINING = _each_with(_of_training)
FURTHER = (
    PublishedFigure("Steps to result on the training set", "steps", _ON_TRAINING),
    PublishedFigure("Learning rate of the best trial", "learning_rate", _EACH),
    PublishedFigure("Momentum of the best trial", "momentum", _EACH),
    PublishedFigure(
        "Which metaparameters reach the goal within the whole budget",
        "scatter",
        _scatters(),
    ),
    PublishedFigure("Steps to result of fewer trials", "trials", _EACH),
    PublishedFigure(
        "Best validation metric within a budget, from near",
        "budgets",
        tuple(replace(panel, limits=None) for panel in FIGURES[-1].panels),
        2,
    ),
)
"""What the archive allows beyond them."""
