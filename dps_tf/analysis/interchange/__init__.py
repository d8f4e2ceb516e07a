"""Runs from elsewhere as tables, and one's own in the layout of others."""
