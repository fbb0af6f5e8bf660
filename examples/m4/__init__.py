"""Massively multilingual translation into English: the M4 experiment of the GShard paper, small."""
