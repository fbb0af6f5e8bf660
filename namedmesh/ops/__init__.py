"""What an op means."""
