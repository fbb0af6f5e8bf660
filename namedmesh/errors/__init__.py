"""Errors: the one exception class, and the lines of the user's code that errors name."""
