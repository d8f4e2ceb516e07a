"""Figures: each module draws one kind, from tidy tables onto axes it is given.

No figure loads anything or computes a statistic: what a mark means is decided where the
table is made. matplotlib enters the package through this folder only.
"""
