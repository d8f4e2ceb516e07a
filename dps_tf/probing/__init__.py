"""Trials trained again to measure why K* is what it is: smoothness and noise."""
