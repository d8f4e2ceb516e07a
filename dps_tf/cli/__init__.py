"""What the commands share: flags, exit codes, where sweeps lie."""
