"""Records that are written to files, and how files are read and written."""
