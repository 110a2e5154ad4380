"""What a model takes along: exports for other runtimes, its card, the upload to a hub, and one plain script."""
