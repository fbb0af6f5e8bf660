"""Hardware: devices, hosts and links."""
