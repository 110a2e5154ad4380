"""One training from its first or next step to its end: a model, batches and a plan in; trained weights and a history out."""
