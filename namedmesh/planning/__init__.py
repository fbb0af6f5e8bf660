"""Planning: from a program and a layout to a plan."""
