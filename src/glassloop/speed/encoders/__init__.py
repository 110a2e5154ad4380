"""Which models the fast paths recognise, and how their layers run on packed batches."""
