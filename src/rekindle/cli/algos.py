"""`rekindle algos`: list the algorithms and their settings."""

from __future__ import annotations

from typing import Any

import msgspec

from rekindle.agents.presets import Preset, presets
from rekindle.cli.field_docs import field_docs
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
    explanations = field_docs(kind)
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
