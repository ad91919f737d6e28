"""`rekindle algos`: list the algorithms and their settings."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any

import msgspec

from rekindle.agents.presets import Preset, presets
from rekindle.cli.modules import find_modules_here, module_of
from rekindle.run.settings import setting_text
from rekindle.text import NOTHING
from rekindle.training.algorithms import ALGORITHMS, config_type
from rekindle.ui.output import write_json
from rekindle.ui.tables import console, facts, headline, table, words

__all__ = ["list_algorithms"]


def list_algorithms(name: str | None, *, as_json: bool) -> int:
    """Print every algorithm, or the settings of one."""
    if name is None:
        if as_json:
            write_json(
                {
                    known: {"actions": item.actions, "summary": item.summary, "presets": presets().get(known, {})}
                    for known, item in ALGORITHMS.items()
                }
            )
        else:
            rows = [
                [known, ", ".join(item.actions), item.summary, ", ".join(presets().get(known, ())) or NOTHING]
                for known, item in ALGORITHMS.items()
            ]
            columns = ["algorithm", words("actions"), words("what it is"), words("presets")]
            console().print(table(columns, rows))
        return 0
    find_modules_here(module_of(name))
    kind = config_type(name)
    defaults: dict[str, Any] = msgspec.to_builtins(kind())
    explanations = _explanations(kind)
    if as_json:
        write_json(
            {field: {"default": value, "help": explanations.get(field, "")} for field, value in defaults.items()}
        )
    else:
        out = console()
        rows = [[field, setting_text(value), explanations.get(field, "")] for field, value in defaults.items()]
        out.print(table(["setting", words("default"), words("what it does")], rows))
        for preset in presets().get(name, {}).values():
            out.print(headline(f"Preset {preset.name}", ", ".join(preset.envs)))
            out.print(facts((setting, setting_text(value)) for setting, value in _settings(preset).items()))
    return 0


def _settings(preset: Preset) -> dict[str, Any]:
    stored: dict[str, Any] = msgspec.to_builtins(preset)
    agent = {f"agent.{name}": value for name, value in stored["agent"].items()}
    env = {f"env.{name}": value for name, value in stored["env"].items()}
    return {"steps": preset.steps, "num_envs": preset.num_envs, **env, **agent}


def _explanations(kind: type) -> dict[str, str]:
    """The docstring of each field of a class and its bases, the nearest first."""
    bases = kind.__mro__[::-1]
    return {name: text for base in bases for name, text in _own_explanations(base).items()}


def _own_explanations(kind: type) -> dict[str, str]:
    """The docstring of each field that a class declares itself; empty if its source cannot be read."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return {}
    (node,) = ast.parse(textwrap.dedent(source)).body
    body = node.body if isinstance(node, ast.ClassDef) else []
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
