"""Workloads and sweeps are configured here, by gin files or Python values."""
