"""Are the panels of the figures those of the publication?"""

from __future__ import annotations

from tests.shallue2019.script import figure_panels

FIGURES = figure_panels.FIGURES

# What the published notebook draws, from the tables of facts about the paper: of each
# panel its curves, their goal (that of all, or each its own), and the batch size n.
EACH = (
    ("mnist-simple_cnn_base", 0.01),
    ("fashion_mnist-simple_cnn_base", 0.1),
    ("cifar_10-resnet_8", 0.3),
    ("imagenet-resnet_50", 0.25),
    ("open_images_v4-resnet_50", 0.31),
    ("lm1b-transformer_base", 3.9),
    ("common_crawl-transformer_base", 3.9),
    ("imagenet-vgg_11", 0.35),
    ("lm1b-lstm", 3.9),
)
SUBSETS = [f"mnist_subsets.mnist_{n}" for n in (55000, 27500, 13750, 6875)]
CNN_SIZES = ("base", "narrow", "wide")
WIDTHS = ("1024", *("_".join([w] * 3) for w in ("128", "256", "512", "1024", "2048")))
SIZES_OF_TRANSFORMERS = ("base", "wide", "shallow", "narrow_and_shallow")
NORMALIZED = {
    3: (
        (["mnist-fc_1024_1024_1024", "mnist-simple_cnn_base"], [0.03], 1),
        (["imagenet-resnet_50", "imagenet-vgg_11"], [0.35], 64),
        (["lm1b-transformer_base", "lm1b-lstm"], [3.9], 16),
        ([f"mnist-fc_{widths}" for widths in WIDTHS], [0.03], 2),
        ([f"mnist-simple_cnn_{size}" for size in CNN_SIZES], [0.01], 2),
        ([f"lm1b-transformer_{s}" for s in SIZES_OF_TRANSFORMERS], [4.2], 16),
    ),
    5: (
        ([EACH[0][0], EACH[1][0]], [0.01, 0.1], 2),
        ([EACH[3][0], EACH[4][0]], [0.25, 0.31], 128),
        ([EACH[5][0], EACH[6][0]], [3.9], 32),
    ),
    6: (
        ([f"{subset}-simple_cnn_base" for subset in SUBSETS], [0.02], 2),
        (
            [
                "imagenet-resnet_50",
                "imagenet_subsets.imagenet_half_images-resnet_50",
                "imagenet_subsets.imagenet_half_classes-resnet_50",
            ],
            [0.25, 0.3, 0.3],
            64,
        ),
    ),
}


def goals_of(number: int) -> list[list[tuple[str, float]]]:
    return [
        [(series.workload, series.goal.threshold) for series in panel.series]
        for panel in FIGURES[number - 1].panels
    ]


def test_panels_are_those_of_the_publication():
    assert [figure.number for figure in FIGURES] == list(range(1, 12))
    panels = [len(figure.panels) for figure in FIGURES]
    assert panels == [9, 3, 6, 3, 3, 2, 2, 9, 12, 4, 8]
    goals = {str(s.goal) for f in FIGURES for p in f.panels for s in p.series}
    assert all("<=" not in goal and ">=" not in goal for goal in goals)
    assert goals_of(1) == [[each] for each in EACH]
    assert goals_of(8) == [
        [(workload, 0.3 if workload.startswith("fashion") else goal)]
        for workload, goal in EACH
    ]
    assert [[goal for _, goal in panel] for panel in goals_of(2)] == [
        [0.008, 0.01, 0.012, 0.014, 0.016],
        [3.8, 3.85, 3.9, 3.95, 4.0, 4.05],
        [0.25, 0.27, 0.29, 0.31],
    ]
    for number, expected in NORMALIZED.items():
        for panel, (names, goals_of_all, first) in zip(
            FIGURES[number - 1].panels, expected, strict=True
        ):
            thresholds = goals_of_all * (len(names) // len(goals_of_all))
            found = {s.workload: s.goal.threshold for s in panel.series}
            assert found == dict(zip(names, thresholds, strict=True)), panel.title
            assert (panel.first, panel.series[0].workload) == (first, names[0])
    networks = [(p.series[0].workload, len(p.series)) for p in FIGURES[3].panels]
    assert networks == [
        (EACH[0][0], 3),
        ("lm1b-transformer_shallow", 3),
        (EACH[2][0], 2),
    ]


def test_scatters_and_budgets_are_those_of_the_publication():
    panels = FIGURES[8].panels
    assert [p.batch_size for p in panels[:6]] == [128, 256, 512, 1024, 2048, 4096]
    assert [p.batch_size for p in panels[6:]] == [512, 1024, 2048, 4096, 8192, 16384]
    assert {(p.budgets, p.examples) for p in panels[:6]} == {((1,), 30_301_028)}
    assert {(p.budgets, p.examples) for p in panels[6:]} == {((25_000,), 0)}
    ends = [(p.budgets[0], p.budgets[-1], p.examples) for p in FIGURES[10].panels]
    assert ends == [
        *[(5e3, 5e6, 0), (10, 10_000, 55_000)] * 2,
        *[(1e4, 1e6, 0), (0.2, 20, 30_301_028)] * 2,
    ]
    # By where the published curves end, these bound them.
    for panel in FIGURES[10].panels:
        bound = {
            0: {5e4, 1e5, 5e5},
            55_000: {100, 200, 500, 1000, 2000, 5000},
            30_301_028: {1, 2, 5, 10},
        }[panel.examples]
        assert bound <= set(panel.budgets)
