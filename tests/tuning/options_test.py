from __future__ import annotations

import pytest

from dps_tf.core import UserError
from dps_tf.tuning.options import Options


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"engine": "rya"}, "did you mean 'ray'"),
        ({"ray_address": "auto"}, "goes with --engine=ray"),
        ({"engine": "ray", "slots_timeout": 5.0}, "goes with --ray_address"),
        ({"slots_timeout": -1.0}, "give seconds"),
        ({"strategy": "miror"}, "did you mean 'mirrored'"),
        ({"data_placement": "disk"}, "disk"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(given, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        Options("sweep", **given)
    assert "\n" not in str(caught.value)
