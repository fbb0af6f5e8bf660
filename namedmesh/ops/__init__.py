"""The catalogue of ops."""
