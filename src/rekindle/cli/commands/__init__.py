"""The commands: their arguments and their help, and a table of them by name."""

from rekindle.cli.commands.arguments import PARSING
from rekindle.cli.commands.config_file import with_positionals
from rekindle.cli.commands.forking import fork_command
from rekindle.cli.commands.serving import serve_command
from rekindle.cli.commands.sweeping import sweep_command
from rekindle.cli.commands.table import COMMANDS
from rekindle.cli.commands.training import train_command

__all__ = [
    "COMMANDS",
    "PARSING",
    "fork_command",
    "serve_command",
    "sweep_command",
    "train_command",
    "with_positionals",
]
