"""Code that commands share: flags, exit codes, messages, plans and runs of sweeps."""
