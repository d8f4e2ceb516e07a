"""The nouns of the measurement: pure values that know no TensorFlow, gin or files."""
