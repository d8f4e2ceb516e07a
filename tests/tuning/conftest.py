from __future__ import annotations

from hypothesis import HealthCheck, settings

# Machines that run the tests are shared: time says nothing about a single example.
settings.register_profile(
    "tuning", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tuning")
