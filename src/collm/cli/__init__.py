"""The ``collm`` command: argument parsing and wiring, nothing else."""
