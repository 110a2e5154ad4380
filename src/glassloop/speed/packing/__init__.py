"""Packed batches: the real tokens of all rows in one line, without padding."""
