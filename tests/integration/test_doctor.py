"""`headrace doctor` finds well what is well, and says of each other thing what to do."""

import json  # noqa: TID251 - the output is read as a script would
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from ingress.doctor.broker import broker_findings, management_findings
from ingress.doctor.command import doctor
from ingress.doctor.finding import Finding, clock_finding
from ingress.doctor.machine import open_files_finding, port_finding, shared_memory_finding
from ingress.doctor.model import model_findings, upstream_findings
from ingress.doctor.store import store_findings
from tests.fixtures.broker import Broker, BrokerNode
from tests.fixtures.ports import free_port
from tests.fixtures.postgres import Postgres

KEY = "hr_0123456789abcdef"


def examined(*arguments: str, status: int = 0, env: dict[str, str] | None = None) -> Any:
    result = CliRunner().invoke(doctor, [*arguments, "--json"], env=env)
    assert result.exit_code == status, result.output
    told = json.loads(result.output)
    assert told["ok"] is (status == 0)
    return [Finding(**found) for found in told["findings"]]


def about(findings: list[Finding], what: str) -> list[Finding]:
    return [finding for finding in findings if finding.about == what]


def states(findings: list[Finding], what: str) -> list[str]:
    return [finding.state for finding in about(findings, what)]


@pytest.fixture
def listening() -> Iterator[int]:
    """A port where something listens that is not ours."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
async def other_server() -> AsyncIterator[str]:
    """It answers as a broker's management API, as an upstream, and as an ingress."""

    async def nodes(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Basic dXNlcjpocl9zZWNyZXQ=":
            return web.Response(status=401)
        broken = {"name": "two", "running": True, "mem_alarm": True, "partitions": ["three"]}
        files = {"name": "one", "running": True, "fd_used": 90, "fd_total": 100}
        date = {"Date": "Tue, 01 Jan 2019 00:00:00 GMT"}
        return web.json_response([files, broken, {"name": "four"}], headers=date)

    async def models(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.Response(status=401)
        return web.json_response({"data": [{"id": "served"}]})

    async def live(_: web.Request) -> web.Response:
        return web.json_response({"status": "live"}, dumps=lambda _: '{"status":"live"}')

    app = web.Application()
    app.add_routes(
        [
            web.get("/api/nodes", nodes),
            web.get("/v1/models", models),
            web.get("/health/live", live),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"127.0.0.1:{site.name.rpartition(':')[2]}"
    await runner.cleanup()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's directory, as far as the doctor looks."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (path / "tokenizer.json").write_text("{}")
    (path / "tokenizer_config.json").write_text('{"chat_template": "…"}')
    (path / "model.safetensors").write_bytes(bytes(1 << 20))
    return path


@pytest.mark.broker
def test_an_ingress_that_has_all_it_needs(
    broker: Broker, postgres: Postgres, tmp_path: Path
) -> None:
    from ingress.stores.command import database

    url = postgres.new_database()
    try:
        assert CliRunner().invoke(database, ["upgrade", "--database", url]).exit_code == 0
        env = {
            "HEADRACE_AMQP_URL": broker.url,
            "HEADRACE_DATABASE": url,
            "HEADRACE_BLOBS": str(tmp_path / "blobs"),
            "HEADRACE_HOST": "0.0.0.0",
            "HEADRACE_PORT": str(free_port()),
            "HEADRACE_API_KEY": f"{KEY} {KEY}x",
            "HEADRACE_PUBLIC_URL": "https://llm.example.com",
            "HEADRACE_MAX_CONCURRENT": "10",
        }
        found = examined("ingress", env=env)
    finally:
        postgres.drop_database(url)
    assert {finding.about for finding in found} == {
        *("options", "config", "port", "public url", "open files", "keys"),
        *("broker", "database", "blobs", "clock"),
    }
    # Of an old broker there is one thing that it does not tell.
    assert {finding.about for finding in found if finding.state != "ok"} <= {"broker"}
    assert states(found, "clock") == ["ok", "ok"]
    assert "2 keys" in about(found, "keys")[0].text
    assert list((tmp_path / "blobs" / "jobs").iterdir()) == []


@pytest.mark.broker
async def test_a_broker_keeps_nothing_of_the_examination(own_broker: BrokerNode) -> None:
    found = await broker_findings(own_broker.url, blobs=True)
    assert found[-1].state == "ok"
    assert not [row for row in await own_broker.rows("queues", "name") if "doctor" in row[0]]


@pytest.mark.broker
async def test_a_broker_that_takes_no_such_messages(own_broker: BrokerNode) -> None:
    await own_broker.set_env(max_message_size=2 << 20)
    await own_broker.evaluate("persistent_term:erase(max_message_size)")
    try:
        found = await broker_findings(own_broker.url, blobs=False)
        assert found[-1].state == "fail"
        assert "no message of 64 MiB" in found[-1].text
        assert "max_message_size" in found[-1].advice
        assert (await broker_findings(own_broker.url, blobs=True))[-1].state == "ok"
    finally:
        await own_broker.set_env(max_message_size=134_217_728)
        await own_broker.evaluate("persistent_term:erase(max_message_size)")


@pytest.mark.broker
async def test_a_broker_with_an_alarm(own_broker: BrokerNode) -> None:
    await own_broker.block_publishers()
    try:
        found = await broker_findings(own_broker.url, blobs=True, step_s=0.5)
    finally:
        await own_broker.unblock_publishers()
    assert found[-1].state == "fail"
    assert "an alarm about memory or disk" in found[-1].text


@pytest.mark.broker
async def test_a_broker_that_is_not_there_or_not_ours(broker: Broker) -> None:
    nowhere = f"amqp://user:hr_secret@127.0.0.1:{free_port()}/"
    wrong = broker.url.replace("guest:guest@", "guest:hr_secret@")
    for url, told in ((nowhere, "cannot be reached"), (wrong, "refuses the credentials")):
        (found,) = await broker_findings(url, blobs=True)
        assert found.state == "fail"
        assert told in found.text
        assert "HEADRACE_AMQP_URL" in found.advice
        assert "hr_secret" not in found.text + found.advice
    # One node of a cluster may be down.
    found_of_two = await broker_findings(f"{broker.url},{nowhere}", blobs=True)
    assert "fail" not in {finding.state for finding in found_of_two}
    (down,) = (finding for finding in found_of_two if "cannot be reached" in finding.text)
    assert down.state == "warn"


async def test_what_the_management_api_tells(other_server: str) -> None:
    found = await management_findings(f"http://user:hr_secret@{other_server}")
    texts = {finding.state + " " + finding.text for finding in found}
    assert "warn the node one has 90 of 100 files open" in texts
    assert "fail the node two has an alarm about its memory: nobody can publish" in texts
    assert "fail the node two is cut off from others" in texts
    assert "warn the node four is down" in texts
    (clock,) = about(found, "clock")
    assert clock.state == "fail"
    assert "ahead of the broker's" in clock.text
    (refused,) = (
        f for f in await management_findings(f"http://{other_server}") if f.about != "clock"
    )
    assert "monitoring" in refused.advice
    (away,) = await management_findings(f"http://user:hr_secret@127.0.0.1:{free_port()}")
    assert away.state == "fail"
    assert "hr_secret" not in away.text + away.advice


async def test_a_database_that_is_away_or_has_other_tables(postgres: Postgres) -> None:
    url = postgres.new_database()
    try:
        (empty,) = await store_findings(url)
    finally:
        postgres.drop_database(url)
    assert empty.state == "fail"
    assert empty.advice == "Run: headrace database upgrade"
    (away,) = await store_findings(f"postgresql://u:hr_secret@127.0.0.1:{free_port()}/x")
    (odd,) = await store_findings("mysql://u:hr_secret@host/x")
    for finding in (away, odd):
        assert finding.state == "fail"
        assert "HEADRACE_DATABASE" in finding.advice
        assert "hr_secret" not in finding.text + finding.advice


def test_every_option_that_is_wrong_is_told_of_at_once(tmp_path: Path, listening: int) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "headrace.yaml").write_text("models: [{id: a, context: 5}]")
    found = examined(
        "ingress",
        *("--blobs", str(tmp_path / "file"), "--queue-wait", "0", "--public-url", "llm"),
        *("--config", str(tmp_path / "headrace.yaml"), "--api-key", "change-me"),
        *("--port", str(listening), "--max-concurrent", "100000000"),
        status=1,
    )
    wrong = {finding.text.split(":")[0]: finding for finding in about(found, "options")}
    assert set(wrong) == {"--amqp-url is required", "--blobs", "--queue-wait", "--public-url"}
    assert "HEADRACE_AMQP_URL" in wrong["--amqp-url is required"].advice
    assert states(found, "config") == ["fail"]
    assert "headrace.yaml:1: models[0].context" in about(found, "config")[0].text
    assert states(found, "keys") == ["warn"]
    assert states(found, "port") == ["fail"]
    assert states(found, "open files") == ["warn"]
    assert all(finding.advice for finding in found if finding.state != "ok")


@pytest.mark.broker
def test_what_only_shows_in_options_together(broker: Broker, tmp_path: Path) -> None:
    arguments = ("--amqp-url", broker.url, "--blobs", str(tmp_path), *("--host", "0.0.0.0"))
    found = examined("ingress", *arguments, status=1)
    assert "can be reached from outside" in next(f.text for f in found if f.state == "fail")
    assert states(found, "public url") == ["warn"]


@pytest.mark.broker
def test_a_worker_and_a_batcher(broker: Broker, folder: Path, tmp_path: Path) -> None:
    common = ("--amqp-url", broker.url, "--blobs", str(tmp_path / "blobs"))
    found = examined("worker", "--model", str(folder), *common, "--metrics-port", str(free_port()))
    assert states(found, "model") == ["ok", "ok"]
    assert states(found, "memory") == states(found, "port") == ["ok"]
    sqlite = f"sqlite:///{tmp_path / 'headrace.db'}"
    found = examined("batcher", *common, "--database", sqlite)
    assert states(found, "database") == states(found, "blobs") == ["ok"]


def test_people_are_shown_a_table() -> None:
    result = CliRunner().invoke(doctor, ["worker", "--model", "/nowhere"], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "FAIL  model" in result.output
    assert "→ Check --model, and that the volume with the model is mounted." in result.output
    assert "2 to put right" in result.output


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: (path / "config.json").write_text("{"), "config.json is damaged"),
        (lambda path: (path / "tokenizer.json").unlink(), "there is no tokenizer"),
        (lambda path: (path / "tokenizer.json").write_text("{"), "tokenizer.json cannot be read"),
        (lambda path: (path / "tokenizer_config.json").unlink(), "there is no chat template"),
        (lambda path: (path / "model.safetensors").unlink(), "has no weights"),
        (
            lambda path: (path / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}}'
            ),
            "of the weights are missing: other.safetensors",
        ),
        (lambda path: shutil.rmtree(path), "there is no /"),
    ],
)
def test_a_model_that_is_not_whole(spoil: Any, told: str, folder: Path) -> None:
    spoil(folder)
    (wrong,) = (f for f in model_findings(str(folder), {}, ()) if f.state != "ok")
    assert told in wrong.text
    assert wrong.advice


def test_a_model_that_does_not_fit(folder: Path) -> None:
    size = 1 << 20
    cases: list[tuple[dict[str, Any], tuple[int, ...], str]] = [
        ({}, (size,), "fail"),
        ({}, (size * 10 // 9,), "warn"),
        ({"tp_size": 2}, (size, size), "ok"),
        ({"tp_size": 4}, (size, size), "fail"),
        ({}, (), "ok"),
    ]
    for arguments, gpus, state in cases:
        assert states(model_findings(str(folder), arguments, gpus), "memory") == [state], gpus


async def test_an_upstream(other_server: str) -> None:
    url = f"http://{other_server}/v1"
    for key, model, state in ((KEY, "served", "ok"), (KEY, "other", "warn"), (None, "m", "fail")):
        (found,) = await upstream_findings(url, key, model)
        assert found.state == state
    (away,) = await upstream_findings(f"http://127.0.0.1:{free_port()}/v1", KEY, "m")
    assert away.state == "fail"


async def test_a_port_where_one_of_ours_listens(other_server: str) -> None:
    port = int(other_server.rpartition(":")[2])
    found = await port_finding("127.0.0.1", port, "/health/live", '"live"')
    assert found.state == "ok"
    assert "a Headrace that runs" in found.text


def test_shared_memory_and_files() -> None:
    assert shared_memory_finding(Path("/nowhere")).state == "warn"
    assert open_files_finding(1).state == "ok"


@pytest.mark.parametrize(
    ("ahead_s", "exact_to_s", "state"),
    [(0.5, 0, "ok"), (-3, 0, "warn"), (3, 2.5, "ok"), (60, 0, "fail"), (-60, 1, "fail")],
)
def test_clocks(ahead_s: float, exact_to_s: float, state: str) -> None:
    found = clock_finding("clock", ahead_s, "the broker's", exact_to_s=exact_to_s)
    assert found.state == state
    assert ("behind" in found.text) is (ahead_s < 0)
