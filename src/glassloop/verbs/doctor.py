"""`glassloop doctor`: the options of the command."""

from __future__ import annotations

from glassloop.command_result import CommandResult
from glassloop.verbs.shared_options import Json


def doctor_command(as_json: Json = False) -> CommandResult:
    """Check this machine and suggest improvements."""
    from glassloop.commands.doctor import check_machine

    return check_machine()
