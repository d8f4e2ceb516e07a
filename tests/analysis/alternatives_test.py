from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dps_tf.analysis.law import (
    Observations,
    aicc,
    compare,
    critical_batch_sizes,
    fit_law,
)

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


def test_where_a_power_law_is_preferred_the_critical_batch_size_is_given_of_both():
    true = (1e5 / 500) ** (1 / 0.7)
    observations = Observations.of(B, noisy(1e5 / B**0.7 + 500))
    fit, forms = fit_law(observations), compare(observations)
    found = critical_batch_sizes(fit, forms)
    assert fit.critical_batch_size.high < true  # What c1/c2 alone would have said.
    assert found.power_law.low < true < found.power_law.high
    assert found.averaged.low < true < found.averaged.high
    assert found.law_weight < 0.01
    assert found.law == fit.critical_batch_size


def test_where_the_law_is_preferred_nothing_is_averaged():
    observations = Observations.of(B, noisy(1e5 / B + 500))
    assert critical_batch_sizes(fit_law(observations), compare(observations)) is None


def test_forms_that_fit_equally_are_averaged_over_both():
    observations = Observations.of(B, noisy(1e5 / B**0.97 + 500, seed=2))
    fit, forms = fit_law(observations), compare(observations)
    forms[2] = replace(forms[2], aicc=forms[0].aicc - 0.1)
    found = critical_batch_sizes(fit, forms)
    assert found.law_weight == pytest.approx(1 / (1 + np.exp(0.05)))
    assert found.averaged.low < max(found.law.low, found.power_law.low)
    assert found.averaged.high > min(found.law.high, found.power_law.high)
