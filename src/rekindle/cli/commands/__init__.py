"""The commands: their arguments, their help, and the table that names them."""

from rekindle.cli.commands.arguments import PARSING
from rekindle.cli.commands.table import COMMANDS
from rekindle.cli.commands.training import train_command

__all__ = ["COMMANDS", "PARSING", "train_command"]
