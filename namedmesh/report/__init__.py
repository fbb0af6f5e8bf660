"""nm.report: a plan as one HTML file."""
