"""The parsing of command-line arguments, and arguments that several commands share."""

from __future__ import annotations

import contextlib
import decimal
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from rekindle.agents.settings import Linear, RunSteps
from rekindle.cli.field_docs import field_docs

__all__ = ["AsJson", "Modules", "PARSING", "RunPath", "Stay", "Tags", "Trust", "Trusted", "Ui"]

RunPath = Annotated[Positional[Path], arg(metavar="PATH", help_behavior_hint="")]
AsJson = Annotated[bool, arg(name="json", help_behavior_hint="")]
Modules = Annotated[tuple[str, ...], arg(name="env-module", metavar="MODULE...", help_behavior_hint="")]
Ui = Annotated[Literal["auto", "tui", "plain", "none"], arg(help_behavior_hint="(default: auto)")]
Tags = Annotated[tuple[str, ...], arg(name="tag", metavar="TAG...", help_behavior_hint="")]
Stay = Annotated[bool, arg(help_behavior_hint="")]


class Trusted(msgspec.Struct, frozen=True):
    """Modules and files of the run's config that the command may use."""

    modules: Modules = ()
    """Modules named by the run's config that may be imported for its environment."""
    agent_modules: Annotated[tuple[str, ...], arg(name="agent-module", metavar="MODULE...", help_behavior_hint="")] = ()
    """The same for its agent."""
    files: Annotated[tuple[str, ...], arg(name="env-file", metavar="FILE...", help_behavior_hint="")] = ()
    """Files named by the run's config that the environment may open."""

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        """As keyword arguments for the functions that recreate a run."""
        return {"modules": (*self.modules, *self.agent_modules), "files": self.files}


Trust = OmitArgPrefixes[Trusted]


def _count(words: list[str]) -> int:
    text = words[0]
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(decimal.InvalidOperation):
        number = decimal.Decimal(text)  # a float could not represent every count
        if number.is_finite() and number.adjusted() < _DIGITS and number == number.to_integral_value():
            return int(number)
    raise ValueError(f"{text!r} is not a whole number such as 100000, 100_000 or 1e5")


def _run_steps(words: list[str]) -> RunSteps:
    text = words[0]
    try:
        if text.endswith("%"):
            return float(text.removesuffix("%")) / 100
        return float(text) if "." in text and "e" not in text.lower() else _count(words)
    except ValueError as error:
        raise ValueError(f"{text!r} is neither a number of env steps nor a percentage of the training") from error


def _shown_steps(value: RunSteps) -> str:
    return f"{value:.6%}".rstrip("%").rstrip("0").rstrip(".") + "%" if isinstance(value, float) else str(value)


def _schedule(words: list[str]) -> float | Linear | None:
    parts = words[0].split(":")
    if parts == ["None"]:
        return None
    try:
        return (
            float(words[0])
            if len(parts) == 1
            else Linear(float(parts[0]), float(parts[1]), _run_steps([":".join(parts[2:])]))
        )
    except (ValueError, IndexError) as error:
        raise ValueError(f"{words[0]!r} is neither a number nor START:END:STEPS nor START:END:PERCENT%") from error


def _shown_schedule(value: float | Linear | None) -> list[str]:
    is_schedule = isinstance(value, Linear)
    return [f"{value.start}:{value.end}:{_shown_steps(value.steps)}" if is_schedule else str(value)]


_DIGITS = 19
"""The most digits of a whole number in exponent notation: counts are below 2^63."""

REGISTRY = tyro.constructors.ConstructorRegistry()


@cast("Any", REGISTRY).primitive_rule
def _counts(info: Any) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Parse a whole number, also as 1e5."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=_count,
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


@cast("Any", REGISTRY).primitive_rule
def _steps(info: Any) -> tyro.constructors.PrimitiveConstructorSpec[RunSteps] | None:
    """Parse env steps, or a percentage of the training, from one word."""
    if set(typing.get_args(info.type)) != {int, float}:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="STEPS|PERCENT%",
        instance_from_str=_run_steps,
        is_instance=lambda value: isinstance(value, int | float),
        str_from_instance=lambda value: [_shown_steps(value)],
    )


@cast("Any", REGISTRY).primitive_rule
def _schedules(info: Any) -> tyro.constructors.PrimitiveConstructorSpec[float | Linear | None] | None:
    """Parse a number, or a schedule, from one word."""
    if set(typing.get_args(info.type)) - {types.NoneType} != {float, Linear}:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="FLOAT|START:END:STEPS",
        instance_from_str=_schedule,
        is_instance=lambda value: value is None or isinstance(value, int | float | Linear),
        str_from_instance=_shown_schedule,
    )


@cast("Any", REGISTRY).struct_rule
def _settings(info: Any) -> tyro.constructors.StructConstructorSpec | None:
    """Take the fields of a struct as options; tyro itself keeps the line breaks of their docstrings."""
    if not (isinstance(info.type, type) and issubclass(info.type, msgspec.Struct)):
        return None
    defaults = info.default if isinstance(info.default, info.type) else info.type()
    types_of, docs = typing.get_type_hints(info.type, include_extras=True), field_docs(info.type)
    fields = (
        tyro.constructors.StructFieldSpec(name, types_of[name], getattr(defaults, name), docs.get(name))
        for name in info.type.__struct_fields__
    )
    return tyro.constructors.StructConstructorSpec(info.type, tuple(fields))


PARSING: dict[str, Any] = {
    "config": (
        tyro.conf.FlagCreatePairsOff,
        tyro.conf.HelptextFromCommentsOff,
        tyro.conf.AvoidSubcommands,
        tyro.conf.EnumChoicesFromValues,
    ),
    "registry": REGISTRY,
}
"""The options of `tyro.cli` for every command."""
