"""`rekindle check`: check an environment for problems."""

from __future__ import annotations

from collections.abc import Sequence

from rekindle.cli.modules import find_modules_here, module_of
from rekindle.envs import EnvFactory, check_env
from rekindle.interrupt import Interrupter
from rekindle.ui.output import write_json
from rekindle.ui.tables import cell, console, table, words

__all__ = ["check_environment"]

_STYLES = {"good": "green", "warning": "yellow", "error": "bold red"}


def check_environment(env: str, *, steps: int, modules: Sequence[str], as_json: bool) -> int:
    """Print the results of checking an environment; the exit code is 1 if it cannot be trained on."""
    find_modules_here([*modules, *module_of(env)])
    interrupter = Interrupter()
    with interrupter.signals():
        factory = EnvFactory(env, modules=tuple(modules))
        findings = check_env(factory, steps=steps, should_stop=interrupter.should_stop)
    if as_json:
        write_json(findings)
    else:
        rows = [[cell(found.level, _STYLES[found.level]), found.what, found.message] for found in findings]
        console().print(table(["", "checked", words("result")], rows))
    return 1 if any(found.level == "error" for found in findings) else 0
