"""Scripts for transformers' Trainer: its settings, callbacks and methods as parts of the one loop, and `glassloop port`."""
