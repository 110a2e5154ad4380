"""A study: many runs of different settings and seeds, an honest choice among them, and what it shows."""
