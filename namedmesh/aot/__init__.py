"""Answers for absent machines: Artifacts compiled for devices that are not here."""
