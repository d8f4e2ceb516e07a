"""Workloads: what gin files bind."""
