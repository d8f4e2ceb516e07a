"""Readers of runs of other software, as tables and as sweep directories."""
