"""The schedule of compiled code: what is hidden behind ops, and what the device waits for."""
