"""What Figures 1 to 11 of Shallue et al. 2019 show, panel by panel.

Goals, normalizations, reference batch sizes, orders and limits of axes are those of the
published notebook. Workloads are named as the archive names them: the data set with
dots for slashes, a hyphen, the model. Of figures 9 and 11 the notebook's batch sizes
and budgets are not known; these are inferred (figure 11) or chosen (figure 9).
"""

from __future__ import annotations

from dps_tf.analysis.report.shallue2019_content import (
    NESTEROV,
    Panel,
    PublishedFigure,
    Series,
)
from dps_tf.core.goal import Goal

ERROR = "validation/classification_error"
LOSS = "validation/cross_entropy"
PRECISION = "validation/average_precision"
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
AVERAGE_PRECISION = Goal(PRECISION, 0.31, "maximize", inclusive=False)

_FIRST = (
    ("Simple CNN on MNIST", CNN, error(0.01), None, None),
    ("Simple CNN on Fashion-MNIST", FASHION, error(0.1), None, None),
    ("ResNet-8 on CIFAR-10", RESNET8, error(0.3), None, None),
    ("ResNet-50 on ImageNet", RESNET50, error(0.25), None, None),
    ("ResNet-50 on Open Images", OPEN_IMAGES, AVERAGE_PRECISION, None, None),
    ("Transformer on LM1B", BASE, loss(3.9), None, None),
    ("Transformer on Common Crawl", CRAWL, loss(3.9), None, None),
    ("VGG-11 on ImageNet", VGG, error(0.35), None, None),
    ("LSTM on LM1B", LSTM, loss(3.9), 13.0, 21.0),
)


def _goals(
    title: str, workload: str, goals: tuple[float, ...], metric: str = ERROR
) -> Panel:
    series = tuple(
        Series(f"{g:g}", workload, Goal(metric, g, inclusive=False)) for g in goals
    )
    return Panel(title, series)


def _fully_connected() -> tuple[Series, ...]:
    widths = ("128", "256", "512", "1024", "2048")
    names = ["1024", *("_".join([width] * 3) for width in widths)]
    return tuple(
        Series(n.replace("_", "-"), f"mnist-fc_{n}", error(0.03), "sgd") for n in names
    )


def _optimizers(workload: str, goal: Goal, *names: str) -> tuple[Series, ...]:
    # The line of perfect scaling is that of Nesterov momentum, which comes first.
    return tuple(Series(name, workload, goal, name) for name in names)


def _one(label: str, workload: str, goal: Goal, optimizer: str = NESTEROV) -> Series:
    return Series(label, workload, goal, optimizer)


def _scatter(steps: int, epochs: bool) -> tuple[Panel, ...]:
    budget = f"{steps} epoch" if epochs else f"{steps:,} steps"
    return tuple(
        Panel(
            f"B = {size}, {budget}",
            (_one("base", BASE, loss(3.9)),),
            batch_size=size,
            budgets=(steps,),
            epochs=epochs,
            examples=LM1B_SENTENCES,
        )
        for size in (128, 512, 1024, 2048, 4096, 16384)
    )


def _budgets(
    title: str,
    workload: str,
    goal: Goal,
    limits: tuple[float, float],
    budgets: tuple[tuple[int, ...], tuple[int, ...]],
    examples: int,
) -> tuple[Panel, Panel]:
    series = (_one(title, workload, goal),)
    kinds = ((" (steps)", budgets[0], False), (" (epochs)", budgets[1], True))
    steps, epochs = (
        Panel(
            title + ending,
            series,
            budgets=found,
            epochs=is_epochs,
            examples=examples,
            limits=limits,
        )
        for ending, found, is_epochs in kinds
    )
    return steps, epochs


# Which of both at which batch size bounds the published curves, by their ends.
_MNIST_BUDGETS = (
    (10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000, 2_000_000, 5_000_000),
    (100, 500, 1_000, 2_000, 5_000, 10_000),
)
_LM1B_BUDGETS = (
    (20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000),
    (1, 2, 5, 10, 20),
)
_SIZES = (
    ("base", BASE),
    ("wide", WIDE),
    ("shallow", SHALLOW),
    ("narrow and shallow", NARROW),
)

FIGURES = (
    PublishedFigure(
        "Steps to result against batch size",
        "steps",
        tuple(
            Panel(title, (_one("nesterov", workload, goal),), low=low, high=high)
            for title, workload, goal, low, high in _FIRST
        ),
        number=1,
    ),
    PublishedFigure(
        "Steps to result for several goals",
        "goals",
        (
            _goals("Simple CNN on MNIST", CNN, (0.008, 0.01, 0.012, 0.014, 0.016)),
            _goals(
                "Transformer on LM1B", BASE, (3.8, 3.85, 3.9, 3.95, 4.0, 4.05), LOSS
            ),
            _goals("ResNet-50 on ImageNet", RESNET50, (0.25, 0.26, 0.27, 0.29, 0.31)),
        ),
        number=2,
    ),
    PublishedFigure(
        "Networks of different kind and size",
        "normalized",
        (
            Panel(
                "Fully connected and Simple CNN on MNIST",
                (
                    _one("FC-1024x3", "mnist-fc_1024_1024_1024", error(0.03), "sgd"),
                    _one("Simple CNN", CNN, error(0.03), "sgd"),
                ),
                1,
                -11,
                1,
            ),
            Panel(
                "ResNet-50 and VGG-11 on ImageNet",
                (
                    _one("ResNet-50", RESNET50, error(0.35)),
                    _one("VGG-11", VGG, error(0.35)),
                ),
                64,
                -9,
                1,
            ),
            Panel(
                "Transformer and LSTM on LM1B",
                (_one("Transformer", BASE, loss(3.9)), _one("LSTM", LSTM, loss(3.9))),
                16,
                -8,
                1,
            ),
            Panel("Fully connected on MNIST", _fully_connected(), 2, -11, 1),
            Panel(
                "Simple CNN on MNIST",
                tuple(
                    _one(n, f"mnist-simple_cnn_{n}", error(0.01), "sgd")
                    for n in ("base", "narrow", "wide")
                ),
                2,
                -11,
                1,
            ),
            Panel(
                "Transformers on LM1B",
                tuple(_one(name, workload, loss(4.2)) for name, workload in _SIZES),
                16,
                -9,
                1,
            ),
        ),
        2,
        number=3,
    ),
    PublishedFigure(
        "Optimizers",
        "steps",
        (
            Panel(
                "Simple CNN on MNIST",
                _optimizers(CNN, error(0.01), NESTEROV, "momentum", "sgd"),
                low=4,
                high=17,
            ),
            Panel(
                "Transformer (shallow) on LM1B",
                _optimizers(SHALLOW, loss(3.9), NESTEROV, "momentum", "sgd"),
                low=12,
                high=22,
            ),
            Panel(
                "ResNet-8 on CIFAR-10",
                _optimizers(RESNET8, error(0.3), NESTEROV, "sgd"),
                low=7,
                high=18,
            ),
        ),
        number=4,
    ),
    PublishedFigure(
        "Data sets",
        "normalized",
        (
            Panel(
                "Simple CNN",
                (
                    _one("MNIST", CNN, error(0.01)),
                    _one("Fashion-MNIST", FASHION, error(0.1)),
                ),
                2,
                high=1,
            ),
            Panel(
                "ResNet-50",
                (
                    _one("ImageNet", RESNET50, error(0.25)),
                    _one("Open Images", OPEN_IMAGES, AVERAGE_PRECISION),
                ),
                128,
                high=1,
            ),
            Panel(
                "Transformer",
                (_one("LM1B", BASE, loss(3.9)), _one("Common Crawl", CRAWL, loss(3.9))),
                32,
                high=1,
            ),
        ),
        number=5,
    ),
    PublishedFigure(
        "Sizes of the training set",
        "normalized",
        (
            Panel(
                "Simple CNN on subsets of MNIST",
                tuple(
                    _one(
                        f"{n / 550:g} %",
                        f"mnist_subsets.mnist_{n}-simple_cnn_base",
                        error(0.02),
                    )
                    for n in (55_000, 27_500, 13_750, 6_875)
                ),
                2,
                -10,
                1,
            ),
            Panel(
                "ResNet-50 on subsets of ImageNet",
                (
                    _one("100 %", RESNET50, error(0.3)),
                    *(
                        _one(
                            f"half the {kind}",
                            f"imagenet_subsets.imagenet_half_{kind}-resnet_50",
                            error(0.3),
                        )
                        for kind in ("images", "classes")
                    ),
                ),
                64,
                -10,
                1,
            ),
        ),
        2,
        number=6,
    ),
    PublishedFigure(
        "Label smoothing, ResNet-50 on ImageNet",
        "smoothing",
        tuple(
            Panel(
                title,
                tuple(
                    _one(f"{share:g}", RESNET50, error(0.25))
                    for share in (0.0, 0.01, 0.1)
                ),
            )
            for title in ("Best validation error", "Steps to 0.25")
        ),
        2,
        number=7,
    ),
    PublishedFigure(
        "Effective learning rate of the best trial",
        "rates",
        tuple(
            Panel(
                title,
                (_one("nesterov", name, error(0.3) if name == FASHION else goal),),
            )
            for title, name, goal, _, _ in _FIRST
        ),
        number=8,
    ),
    PublishedFigure(
        "Which metaparameters reach the goal, Transformer on LM1B",
        "scatter",
        (*_scatter(1, True), *_scatter(25_000, False)),
        number=9,
    ),
    PublishedFigure(
        "Which metaparameters reach the goal, four Transformers at B = 1024",
        "scatter",
        tuple(
            Panel(
                name,
                (_one(name, workload, loss(4.2)),),
                batch_size=1024,
                budgets=(50_000,),
                limits=(1e-4, 1e-1),
            )
            for name, workload in _SIZES
        ),
        2,
        number=10,
    ),
    PublishedFigure(
        "Best validation metric within a budget",
        "budgets",
        (
            *_budgets(
                "Simple CNN on MNIST",
                f"solution_quality.{CNN}",
                error(0.01),
                (0.0, 0.04),
                _MNIST_BUDGETS,
                MNIST_IMAGES,
            ),
            *_budgets(
                "Simple CNN on Fashion-MNIST",
                f"solution_quality.{FASHION}",
                error(0.1),
                (0.05, 0.2),
                _MNIST_BUDGETS,
                MNIST_IMAGES,
            ),
            *_budgets(
                "Transformer (narrow and shallow) on LM1B",
                NARROW,
                loss(4.2),
                (4.0, 5.5),
                _LM1B_BUDGETS,
                LM1B_SENTENCES,
            ),
            *_budgets(
                "Transformer (base) on LM1B",
                BASE,
                loss(3.9),
                (3.5, 5.5),
                _LM1B_BUDGETS,
                LM1B_SENTENCES,
            ),
        ),
        2,
        number=11,
    ),
)
