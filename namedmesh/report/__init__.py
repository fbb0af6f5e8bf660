"""Pages that people look at: a plan as one HTML file."""
