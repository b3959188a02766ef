"""Numbers that make no sense are refused by the option that they were given to."""

import click
import pytest
from click.testing import CliRunner

from ingress.commands import ingress
from ingress.embedded import up
from workers.__main__ import worker


@pytest.mark.parametrize("command", [up, ingress, worker], ids=lambda command: command.name)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--port", "70000"),
        ("--queue-wait", "0"),
        ("--grace", "-1"),
        ("--max-concurrent", "0"),
        ("--concurrency", "0"),
        ("--repetition-window", "-1"),
        ("--metrics-port", "70000"),
    ],
)
def test_senseless_numbers(command: click.Command, option: str, value: str) -> None:
    result = CliRunner().invoke(command, [option, value])
    assert result.exit_code == click.UsageError.exit_code
    if any(option in parameter.opts for parameter in command.params):
        assert f"Invalid value for '{option}'" in result.output
    else:
        assert f"No such option '{option}'" in result.output
