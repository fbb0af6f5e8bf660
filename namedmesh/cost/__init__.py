"""What a plan costs before anything is compiled: seconds by a roofline, and memory."""
