"""A campaign of faults against a training run in several processes."""
