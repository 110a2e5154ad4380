"""The run folder: what is in it, the typed records, and the files that are read and written through it. No torch."""
