"""The command line: options, help and errors of every command. Nothing heavy is imported before a command runs."""
