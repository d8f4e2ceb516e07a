"""The examples in docstrings of the analysis give what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import dps_tf.analysis

MODULES = [
    module.name
    for module in pkgutil.walk_packages(dps_tf.analysis.__path__, "dps_tf.analysis.")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_show(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
