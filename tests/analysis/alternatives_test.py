from __future__ import annotations

import numpy as np
import pytest

from dps_tf.analysis.law import Observations, aicc, compare

B = 2.0 ** np.arange(0, 20, 2)


def noisy(steps, seed=0):
    return steps * np.exp2(np.random.default_rng(seed).normal(0, 0.05, len(steps)))


def best(observations):
    quoted = [form for form in compare(observations) if form.aicc is not None]
    return min(quoted, key=lambda form: form.aicc).name


def test_the_true_form_wins_by_aicc():
    law = noisy(1e5 / B + 500)
    assert best(Observations.of(B, law, np.floor(law) - 20)) == "law"
    assert best(Observations.of(B, noisy(1e7 / B))) == "no_plateau"
    assert best(Observations.of(B, noisy(1e5 / B**0.5 + 500))) == "power_law"


def test_exact_power_law_is_recovered():
    found = {form.name: form for form in compare(Observations.of(B, 1e5 / B**0.7 + 90))}
    parameters = found["power_law"].parameters
    assert parameters["a"] == pytest.approx(0.7, rel=1e-2)
    assert parameters["d"] == pytest.approx(90, rel=3e-2)
    assert found["power_law"].rms < 1e-2 < found["law"].rms


def test_more_parameters_never_fit_worse():
    for seed in range(5):
        steps = np.ceil(noisy(3e4 / B + 300, seed) / 100) * 100
        forms = {f.name: f for f in compare(Observations.of(B, steps, steps - 100))}
        likelihoods = [
            forms[name].log_likelihood for name in ("no_plateau", "law", "power_law")
        ]
        assert (np.diff(likelihoods) >= -1e-3).all()


def test_three_parameters_are_not_quoted_below_eight_points():
    forms = compare(Observations.of(B[:7], noisy(1e5 / B[:7] + 500)))
    power = forms[2]
    assert power.aicc is None and "below 8 points" in power.reason
    assert forms[0].aicc is not None
    assert compare(Observations.of(B[:8], noisy(1e5 / B[:8] + 500)))[2].aicc is not None


def test_three_points_leave_aicc_undefined():
    forms = compare(Observations.of(B[:3], noisy(1e5 / B[:3] + 500)))
    assert forms[0].aicc is None and "not defined" in forms[0].reason


def test_aicc_is_its_formula():
    assert aicc(-3.0, 3, 10) == pytest.approx(6 + 6 + 24 / 6)
    assert aicc(-3.0, 3, 4) is None
