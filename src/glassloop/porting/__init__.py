"""Rewrite scripts and notebooks that use transformers, so that they run on Glassloop."""
