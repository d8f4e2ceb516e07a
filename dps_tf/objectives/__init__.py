"""Losses and metrics of a workload."""
