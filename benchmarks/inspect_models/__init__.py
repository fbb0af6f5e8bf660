"""nm.inspect on models of other libraries, unchanged, under three shardings."""
