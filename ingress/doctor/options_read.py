"""The options of another command, read as that does, but so that all that are wrong are told."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import click

from ingress.doctor.finding import Finding, fail, ok

_ABOUT: Final = "options"


def lenient(option: click.Parameter) -> click.Parameter:
    """The same option, which takes whatever it is given."""
    found = copy.copy(option)
    found.required = False
    found.callback = None
    if not getattr(option, "is_flag", False):
        found.type = click.STRING
    return found


def read_options(
    command: click.Command, ctx: click.Context, given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Finding]]:
    """What `command` would have made of what was given, as far as that is sound.

    Args:
        command: Whose options they are.
        ctx: Of the command line.
        given: By option, as `lenient` options took it.

    Returns:
        Values by option, without those that are wrong; and what there is to say.
    """
    values: dict[str, Any] = {}
    wrong = []
    for option in command.params:
        name = option.name or ""
        if option.required and given.get(name) is None:
            advice = f"Give it, or set {option.envvar}."
            wrong.append(fail(_ABOUT, f"{option.opts[0]} is required", advice))
            continue
        try:
            values[name] = option.process_value(ctx, given.get(name))
        except click.UsageError as error:
            help_text = getattr(option, "help", None) or ""
            wrong.append(fail(_ABOUT, f"{option.opts[0]}: {error.message}", help_text))
    if not wrong:
        return values, [ok(_ABOUT, f"the options of headrace {command.name} are sound")]
    return values, wrong
