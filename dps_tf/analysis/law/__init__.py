"""The law K* = c1/B + c2: its fit, its uncertainty and its rivals."""
