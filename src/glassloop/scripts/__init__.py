"""Run scripts and notebooks of any age unchanged: names that today's libraries lack are served to this process only."""
