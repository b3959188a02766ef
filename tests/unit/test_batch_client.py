"""What `headrace batch` makes of batches, files and figures before anything is shown or sent."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import click
import orjson
import pytest
from click.testing import CliRunner
from rich.console import Console

from ingress.batch.message_requests import MessageRequests
from ingress.batch.objects import batch_object, message_batch_object
from ingress.client.commands import batch
from ingress.client.display import BatchDisplay, Rate, duration
from ingress.client.input import (
    MESSAGES,
    check_input,
    endpoint_of,
    message_batch_body,
)
from ingress.client.output import STDOUT, errors_beside, replacing
from ingress.client.view import BatchView, shape_of, view
from schemas.batch import Batch, Counts, LineError, Shape, Status
from schemas.delta import Usage


def record(
    shape: Shape = "openai",
    status: Status = "completed",
    counts: Counts = Counts(),  # noqa: B008 - frozen
    errors: tuple[LineError, ...] = (),
) -> Batch:
    prefix = {"openai": "batch_", "messages": "msgbatch_"}[shape]
    return Batch(
        batch_id=prefix + 24 * "0",
        account="a",
        shape=shape,
        endpoint=MESSAGES if shape == "messages" else "/v1/responses",
        status=status,
        input_blob="files/x",
        created_at=1_800_000_000.25,
        expires_at=1_800_086_400.25,
        counts=counts,
        usage=Usage(10, 0, 3, 0),
        errors=errors,
    )


def shown(batch: Batch) -> BatchView:
    """As a client reads it off the service's own object."""
    body = (
        message_batch_object(batch, "http://x")
        if batch.shape == "messages"
        else batch_object(batch)
    )
    return view(orjson.loads(orjson.dumps(body)))


@pytest.mark.parametrize(
    ("shape", "status", "counts", "exit_status"),
    [
        ("openai", "completed", Counts(total=2, succeeded=2), 0),
        ("openai", "completed", Counts(total=2, succeeded=1, errored=1), 2),
        ("openai", "expired", Counts(total=2, succeeded=2), 3),
        ("openai", "cancelled", Counts(total=2, cancelled=2), 3),
        ("openai", "failed", Counts(), 3),
        ("messages", "completed", Counts(total=2, succeeded=2), 0),
        ("messages", "completed", Counts(total=2, succeeded=1, errored=1), 2),
        ("messages", "cancelled", Counts(total=2, succeeded=1, cancelled=1), 3),
        ("messages", "expired", Counts(total=2, errored=1, expired=1), 3),
    ],
)
def test_how_a_batch_ended(shape: Shape, status: Status, counts: Counts, exit_status: int) -> None:
    seen = shown(record(shape, status, counts))
    assert seen.ended
    assert seen.exit_status == exit_status
    assert (seen.total, seen.succeeded) == (counts.total, counts.succeeded)
    assert seen.done == counts.total
    assert shape_of(seen.batch_id) == seen.shape == shape
    assert int(seen.created_at) == 1_800_000_000
    assert seen.tokens == ((10, 3) if shape == "openai" else None)


@pytest.mark.parametrize("status", ["validating", "in_progress", "finalizing", "cancelling"])
@pytest.mark.parametrize("shape", ["openai", "messages"])
def test_a_batch_that_has_not_ended(shape: Shape, status: Status) -> None:
    seen = shown(record(shape, status, Counts(total=3)))
    assert not seen.ended
    assert (seen.total, seen.done) == (3, 0)


def test_why_an_input_was_refused() -> None:
    errors = (LineError(code="c", message="m", param="p", line=3), LineError(code="d", message="n"))
    assert shown(record(status="failed", errors=errors)).errors == errors


@pytest.mark.parametrize(
    "body", [{}, {"id": "x"}, {"type": "message_batch"}, {"id": 1, "data": []}]
)
def test_what_is_no_batch(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a batch"):
        view(body)


def test_a_rate_is_that_of_the_last_minute() -> None:
    rate = Rate()
    assert rate.per_s() == 0
    assert rate.left_s(5) is None
    for second in range(200):
        rate.see(second, 2 * min(second, 100) + 10 * max(second - 100, 0))
    assert rate.per_s() == 10
    assert rate.left_s(50) == 5


def test_a_resumed_batch_is_not_as_fast_as_all_that_it_had() -> None:
    rate = Rate()
    rate.see(0, 40_000)
    assert rate.per_s() == 0
    rate.see(10, 40_020)
    assert rate.per_s() == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (600, "10 min"), (12_000, "3 h 20 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_where_there_is_no_terminal_changes_are_told_in_lines() -> None:
    output = io.StringIO()
    moments = iter([0.0, 1.0, 11.0, 31.0, 40.0])
    with BatchDisplay(Console(file=output, width=200), clock=lambda: next(moments)) as display:
        for status, done in (
            ("validating", 0),
            ("in_progress", 0),
            ("in_progress", 20),
            ("in_progress", 60),
            ("completed", 100),
        ):
            counts = Counts(total=100 if status != "validating" else 0, succeeded=done)
            display.show(shown(record(status=status, counts=counts)))  # type: ignore[arg-type]
    texts = [line.partition(" ")[2] for line in output.getvalue().splitlines()]
    assert texts == [
        "validating",
        "in_progress 0/100",
        "in_progress 60/100, 2.0/s, 20 s left",
        "completed 100/100, 10 + 3 tokens",
    ]


# --- Input ----------------------------------------------------------------------------------------

ODD_PARAMS = b'{"n": 123456789012345678901234567890, "t": "\\ud83d\\ude00 \xe2\x80\xa8", "x": 1.0}'
OPENAI_FORM = (
    b'{"custom_id": "a", "method": "POST", "url": "/v1/messages", "body": %b}' % ODD_PARAMS
)
OWN_FORM = b'{"custom_id": "b", "params": {}}'
BOTH_FORMS = b'{"custom_id": "c", "params": {}, "body": {}}'


async def body_of(path: Path) -> bytes:
    return b"".join([piece async for piece in message_batch_body(path)])


async def test_a_file_becomes_the_body_of_a_message_batch(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbf" + OPENAI_FORM + b"\r\n\r\n" + OWN_FORM + b"\n" + BOTH_FORMS)
    translated = b'{"custom_id":"a","params":%b}' % ODD_PARAMS
    requests = b",\n".join([translated, OWN_FORM, BOTH_FORMS])
    assert await body_of(path) == b'{"requests":[%b]}' % requests

    path.write_bytes(OWN_FORM + b"\n" + OPENAI_FORM.replace(ODD_PARAMS, b"{}"))
    reader = MessageRequests()
    reader.feed(await body_of(path))
    reader.end()
    assert reader.total == 2

    path.write_bytes(b"\n")
    assert await body_of(path) == b'{"requests":[]}'


@pytest.mark.parametrize(
    ("lines", "errors"),
    [
        ([OWN_FORM], []),
        ([b"", OWN_FORM, OWN_FORM], [(3, "duplicate_custom_id")]),
        ([OPENAI_FORM.replace(ODD_PARAMS, b"[]"), b"x"], [(1, "missing_required_parameter")]),
        ([b'{"custom_id": "a b", "params": {}}'], [(1, "unsupported_value")]),
        ([b"", b"  "], [(None, "empty_file")]),
    ],
)
def test_mistakes_in_message_batches_have_their_lines(
    tmp_path: Path, lines: list[bytes], errors: list[tuple[int | None, str]]
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\n".join(lines))
    found = check_input(path, MESSAGES)
    wanted = [*errors, (2, "invalid_json_line")] if b"x" in lines else errors
    assert [(error.line, error.code) for error in found.errors] == wanted


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        (b'\n{"url": "/v1/responses"}\nx', "/v1/responses"),
        (OWN_FORM, MESSAGES),
        (b'{"custom_id": "a"}', None),
        (b'{"url": 3}', None),
        (b"[1]", None),
        (b"x", None),
        (b"", None),
    ],
)
def test_what_a_file_is_for(tmp_path: Path, text: bytes, endpoint: str | None) -> None:
    path = tmp_path / "x"
    path.write_bytes(text)
    assert endpoint_of(path) == endpoint


# --- Output ---------------------------------------------------------------------------------------


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("before")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "before"
    with replacing(path) as file:
        file.write(b"whole")
        assert path.read_text() == "before"
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_where_errors_go() -> None:
    assert errors_beside(Path("a/x.jsonl")) == Path("a/x.errors.jsonl")
    assert errors_beside(Path("x")) == Path("x.errors")
    assert errors_beside(STDOUT) == STDOUT


# --- Help -----------------------------------------------------------------------------------------


def commands(
    command: click.Command, *names: str
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield names, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, *names, name)


def test_every_command_and_option_is_explained() -> None:
    found = dict(commands(batch))
    names = {"submit", "status", "results", "cancel", "list", "run", "files"}
    assert {path[0] for path in found if path} == names
    for path, command in found.items():
        assert command.help, path
        options = [option for option in command.params if isinstance(option, click.Option)]
        assert [option.opts for option in options if not option.help and not option.hidden] == []
        shown = CliRunner().invoke(batch, [*path, "--help"])
        assert shown.exit_code == 0
        waits = {"watch", "output"} & {option.name for option in options}
        assert ("Exit status" in shown.output) == (bool(waits) or not path), path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "No such command"),
        (["status"], "Missing argument"),
        (["submit", "/nonexistent"], "does not exist"),
        (["submit", __file__], "--endpoint"),
        (["submit", __file__, "--endpoint", "embeddings"], "An endpoint is one of"),
        (["submit", __file__, "--endpoint", "chat", "--metadata", "x"], "KEY=VALUE"),
        (["submit", __file__, "--endpoint", "messages", "--metadata", "a=b"], "no metadata"),
        (["submit", __file__, "--endpoint", "chat", "--errors", "x"], "goes with --output"),
        (["results", "batch_0"], "--output"),
        (["results", "batch_0", "-o", "x", "--errors", "x"], "must not be the same file"),
        (["list", "--url", "nonsense"], "is not the URL of a service"),
    ],
)
def test_misuse_has_a_status_of_its_own(arguments: list[str], says: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(batch, arguments)
    assert result.exit_code == 1
    assert says in " ".join(result.stderr.split())
