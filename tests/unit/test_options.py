"""Numbers that make no sense are refused by the option that they were given to."""

import stat
from pathlib import Path

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
        ("--log-sample", "0"),
    ],
)
def test_senseless_numbers(command: click.Command, option: str, value: str) -> None:
    result = CliRunner().invoke(command, [option, value])
    assert result.exit_code == click.UsageError.exit_code
    if any(option in parameter.opts for parameter in command.params):
        assert f"Invalid value for '{option}'" in result.output
    else:
        assert f"No such option '{option}'" in result.output


@pytest.mark.parametrize(
    ("urls", "accepted"),
    [
        ("amqp://u:p@one", True),
        ("amqp://u:p@one:1, amqps://u:p@two/vhost,amqp://u:p%2C@three", True),
        ("amqp://u:p@one,http://u:p@two", False),
        ("amqp://u:p@one,", False),
    ],
)
def test_a_broker_or_the_nodes_of_a_cluster(urls: str, accepted: bool) -> None:
    result = CliRunner().invoke(ingress, ["--amqp-url", urls, "--port", "70000"])
    wrong = "--port" if accepted else "--amqp-url"
    assert f"Invalid value for '{wrong}'" in result.output
    assert "u:p" not in result.output


@pytest.mark.parametrize("command", [ingress, worker], ids=lambda command: command.name)
def test_a_place_where_no_blobs_can_be_kept(command: click.Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / "file"
    for arguments, env in (["--blobs", str(place)], {}), ([], {"HEADRACE_BLOBS": str(place)}):
        arguments += ["--model", "m", "--amqp-url", "amqp://u:p@one"]
        result = CliRunner().invoke(command, arguments, env=env)
        assert result.exit_code == click.UsageError.exit_code
        assert f"no blobs can be kept in {place}: " in " ".join(result.output.split())


def test_a_place_for_blobs_is_made(tmp_path: Path) -> None:
    place = tmp_path / "below" / "blobs"
    result = CliRunner().invoke(ingress, ["--blobs", str(place), "--port", "70000"])
    assert "Invalid value for '--port'" in result.output
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
