"""Signatures of steps: nested inputs and results by name, and printed lines."""
