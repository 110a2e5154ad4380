"""`python -m glassloop` is the command `glassloop`."""

from glassloop.cli.main import command

if __name__ == "__main__":
    command()
