"""The default spaces of the shipped optimizers, `{name: (scale, low, high)}`.

The default space of an optimizer is searched if a gin file says `'default'`.
Comparing optimizers is fair only if each is searched as widely as its use asks for,
with equally many points; reports state points and dimensions beside every comparison.
Momentum and betas are drawn so that one minus them is log-uniform, as in every source.

Sources:
    S19     Shallue et al. 2019, the published space of ResNet-50 (momentum as in Lee et
            al. 2021).
    AP      AlgoPerf, Dahl et al. 2023, paper baselines: NAdamW (used here for the Adams
            and LAMB) and Shampoo. Their learning rates end at 1e-2; here one decade
            further, because networks of a few thousand parameters want larger ones.
    own     of this package, around what the optimizer's paper used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SGD_RATE = ("log", 1e-4, 10.0)  # S19
_MOMENTUM = ("reverse_log", 0.9, 0.9999)  # S19
_ADAM_RATE = ("log", 1e-4, 1e-1)  # AP, widened
_ADAM_BETA = ("reverse_log", 0.9, 0.996)  # AP
_FREE_BETA = ("reverse_log", 0.9, 0.98)
_DECAY = ("log", 5e-3, 1.0)  # AP
_WITH_MOMENTUM = {"learning_rate": _SGD_RATE, "momentum": _MOMENTUM}
_OF_ADAM = {"learning_rate": _ADAM_RATE, "beta_1": _ADAM_BETA}
_WITH_DECAY = {**_OF_ADAM, "weight_decay": _DECAY}

SHIPPED_SPACES: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"learning_rate": _SGD_RATE},
    "momentum": _WITH_MOMENTUM,
    "nesterov": _WITH_MOMENTUM,
    "adam": _OF_ADAM,
    "adamw": _WITH_DECAY,
    "lamb": _WITH_DECAY,
    # own: rates ten times smaller and decays ten times larger than AdamW's, as Chen
    # et al. 2023 advise (3 to 10 times).
    "lion": {
        "learning_rate": ("log", 1e-5, 1e-2),
        "beta_1": _ADAM_BETA,
        "weight_decay": ("log", 5e-2, 10.0),
    },
    # own: Defazio et al. 2024 use rates up to 10 and betas 0.9, 0.95 and 0.98.
    "schedule_free_sgd": {
        "learning_rate": ("log", 1e-3, 100.0),
        "beta_1": _FREE_BETA,
    },
    "schedule_free_adamw": {
        "learning_rate": _ADAM_RATE,
        "beta_1": _FREE_BETA,
        "weight_decay": _DECAY,
    },
    # own: You et al. 2017 use rates of about 10 with a decay of 5e-4.
    "lars": {
        "learning_rate": ("log", 1e-1, 100.0),
        "momentum": _MOMENTUM,
        "weight_decay": ("log", 1e-5, 1e-2),
    },
    # own: updates have the size of Adam's, so rates are Adam's; momentum as usual.
    "muon": {
        "learning_rate": _ADAM_RATE,
        "momentum": ("reverse_log", 0.9, 0.99),
        "weight_decay": _DECAY,
    },
    "soap": {
        "learning_rate": _ADAM_RATE,
        "beta_1": ("reverse_log", 0.85, 0.99),  # AP, Shampoo
    },
}
