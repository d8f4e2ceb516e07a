from __future__ import annotations

import hashlib
import itertools

from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import derive_seed


def test_seeds_are_frozen():
    # Every initial point and order of examples of every recorded study hangs on these.
    assert derive_seed(0, 0, "initial point") == 734228451459670508
    assert derive_seed(0, 0, "order") == 2602065306674228584
    assert derive_seed(12345, 99, "order") == 7865833669054113346


@given(st.integers(0, 2**64), st.integers(0, 10**6), st.text(max_size=20))
def test_seed_is_the_head_of_a_hash_in_63_bits(study_seed, index, purpose):
    text = "/".join(("dps_tf", str(study_seed), str(index), purpose))
    whole = int(hashlib.sha256(text.encode()).hexdigest(), 16)
    assert derive_seed(study_seed, index, purpose) == whole >> 193
    assert 0 <= derive_seed(study_seed, index, purpose) < 2**63


def test_no_two_purposes_trials_or_studies_share_a_seed():
    keys = list(itertools.product(range(20), range(100), ("initial point", "order")))
    assert len({derive_seed(*key) for key in keys}) == len(keys)


def test_neighbouring_seeds_share_no_bits():
    bits = [
        bin(derive_seed(0, i, "order") ^ derive_seed(0, i + 1, "order")).count("1")
        for i in range(2000)
    ]
    # Binomial(63, 1/2): mean 31.5, standard deviation of the mean 0.09.
    assert abs(sum(bits) / len(bits) - 31.5) < 0.5
