"""Pretrained models: which ones are known, how they are found, checked and loaded."""
