"""What `make gpu-check` does on a machine with a GPU: an experiment plan, its runner, and one report."""
