"""The run folder: what is in it, the typed record of a run, and the files that are read and written through it."""
