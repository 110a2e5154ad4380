"""`python -m glassloop` is the command `glassloop`."""

from glassloop.cli.main import main

main()
