"""What the tables of a sweep say: numbers, tables and figures, without TensorFlow."""
