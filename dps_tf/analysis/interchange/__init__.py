"""Runs of other software as tables; trials of a sweep as TensorBoard's events."""
