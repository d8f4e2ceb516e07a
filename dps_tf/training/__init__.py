"""Training trials: strategies, the compiled slice, evaluation, the Keras callback."""
