"""A model of its own for each language, all of them trained and evaluated at once."""
