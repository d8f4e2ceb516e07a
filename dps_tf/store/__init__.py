"""Everything that is kept on disk: where it lies, and how it survives damage."""
