"""`python -m glassloop` is the command `glassloop`."""

from glassloop.cli import main

main()
