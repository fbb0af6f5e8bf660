"""Tests of nm.inspect."""
