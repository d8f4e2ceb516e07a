from __future__ import annotations

from dps_tf.core import near_matches


def test_unknown_name_gets_near_matches_and_all_that_are_known():
    text = near_matches("mnist_sdg", ["quickstart", "mnist_sgd", "cifar10_sgd"])
    assert text.startswith("did you mean 'mnist_sgd'")
    assert text.endswith("known: cifar10_sgd, mnist_sgd, quickstart")


def test_nothing_near_gets_no_guess():
    assert near_matches("zzz", ["race"]) == "known: race"
    assert near_matches("zzz", []) == "known: none"
