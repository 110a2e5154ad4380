"""The commands as a shell sees them: one file per verb, with its options and help."""
