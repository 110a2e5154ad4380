"""One training from its first or next step to its end."""
