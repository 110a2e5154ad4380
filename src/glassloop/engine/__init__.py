"""The engine: a model, batches and a plan in; trained weights, evaluations and a history out."""
