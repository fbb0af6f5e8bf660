"""nm.cost: seconds by a roofline, and memory, before anything is compiled."""
