"""The metaparameter budget: keras-tuner oracle and tuner, schedules, study, sweep."""
