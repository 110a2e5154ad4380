"""Scripts for transformers' Trainer, unchanged: its settings, callbacks and methods, as parts of the one loop."""
