"""Tables of text and HTML."""
