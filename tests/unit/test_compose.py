"""The compose file's promises: no secrets, unprivileged, restarted, watched, and scalable."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BUILT = {name: service for name, service in SERVICES.items() if "build" in service}
LONGEST_REQUEST_S = 3600
RUN_ONCE = {"trial-model", "database"}


def example_variables() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text().splitlines()
    pairs = (line.lstrip("#").partition("=") for line in lines if re.match(r"#?[A-Z_]+=", line))
    return {name: value for name, _, value in pairs}


def dockerfile(service: dict[str, Any]) -> str:
    return (ROOT / service["build"]["dockerfile"]).read_text()


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def haproxy(directive: str) -> list[str]:
    lines = (ROOT / "deploy/haproxy/haproxy.cfg").read_text().splitlines()
    return [line.strip() for line in lines if line.strip().startswith(directive)]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_watched_restarted_and_unprivileged(name: str) -> None:
    service = SERVICES[name]
    if name in RUN_ONCE:
        assert service["healthcheck"] == {"disable": True}
        assert service["restart"] == "on-failure:3"
    else:
        assert service["healthcheck"]["test"]
        assert service["restart"] == "unless-stopped"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service


@pytest.mark.parametrize("name", BUILT)
def test_our_images_run_as_nobody_in_particular(name: str) -> None:
    text = dockerfile(BUILT[name])
    final_stage = text[text.rindex("\nFROM ") :]
    assert "\nUSER 10001:10001\n" in final_stage
    assert text.count("\nFROM ") == 2, "one stage to build, one to run"


@pytest.mark.parametrize("name", BUILT)
def test_everything_copied_into_an_image_is_sent_to_the_builder(name: str) -> None:
    allowed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    copies = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", dockerfile(BUILT[name]), re.M)
    sources = [source for copy in copies for source in copy.split()]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert any(f"{source}/".startswith(f"{entry}/") for entry in allowed), source


def test_no_secret_is_written_down() -> None:
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASS|KEY|TOKEN|SECRET|AMQP_URL|DATABASE", variable):
                # nothing left once what comes from outside, and the URL round it, is taken away
                literal = re.sub(r"\$\{[A-Z_]+(:-headrace|:-|:\?[^}]*)\}", "", str(value))
                urls = {"amqp://:@rabbitmq:5672/", "postgresql://headrace:@postgres:5432/headrace"}
                assert literal in {"", *urls}, variable


@pytest.mark.parametrize("variable", ["RABBITMQ_PASSWORD", "POSTGRES_PASSWORD", "HEADRACE_API_KEY"])
def test_secrets_must_be_given_and_the_example_gives_none(variable: str) -> None:
    uses = re.findall(rf"\$\{{{variable}([^}}]*)\}}", (ROOT / "compose.yaml").read_text())
    assert uses
    assert all(use.startswith(":?") for use in uses)
    assert example_variables()[variable] == ""


def test_the_example_names_every_variable() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "compose.yaml").read_text()))
    assert set(example_variables()) - {"COMPOSE_PROFILES"} == used


def test_volumes_are_declared() -> None:
    mounted = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert mounted == set(COMPOSE["volumes"])


def test_the_ingress_can_be_scaled() -> None:
    ingress = SERVICES["ingress"]
    assert "ports" not in ingress
    assert "container_name" not in ingress
    port = ingress["healthcheck"]["test"][-1].split("127.0.0.1:")[1].split("/")[0]
    (template,) = haproxy("server-template")
    assert template.endswith(f"ingress:{port}")
    assert any("resolvers docker" in line for line in haproxy("default-server"))


def test_only_loopback_is_published_unless_asked() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith(("127.0.0.1:", "${HEADRACE_BIND:-127.0.0.1}:")) for port in ports)


def test_a_stop_waits_longer_than_the_grace_of_what_runs_inside() -> None:
    for name in ("ingress", "batcher", "worker", "worker-gpu"):
        service = SERVICES[name]
        grace_s = int(service["environment"]["HEADRACE_GRACE"])
        assert seconds(service["stop_grace_period"]) > grace_s
    proxy_s = seconds(SERVICES["proxy"]["stop_grace_period"])
    assert proxy_s >= seconds(SERVICES["ingress"]["stop_grace_period"])


def test_blobs_lie_where_everybody_can_reach_them() -> None:
    for name in ("ingress", "batcher", "worker", "worker-gpu"):
        service = SERVICES[name]
        assert service["environment"]["HEADRACE_BLOBS"] == "/blobs"
        assert "blobs:/blobs" in service["volumes"]
        # A new volume is owned by whom the image says; the root around it is read-only.
        text = dockerfile(service)
        assert "install -d -m 700 -o 10001 -g 10001 /blobs" in text[text.rindex("\nFROM ") :]


def test_whoever_uses_the_database_waits_for_its_tables() -> None:
    url = SERVICES["database"]["environment"]["HEADRACE_DATABASE"]
    assert SERVICES["database"]["command"] == ["database", "upgrade"]
    assert SERVICES["database"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert f"@postgres:5432/{SERVICES['postgres']['environment']['POSTGRES_DB']}" in url
    assert SERVICES["postgres"]["environment"]["POSTGRES_USER"] in url
    for name in ("ingress", "batcher"):
        service = SERVICES[name]
        assert service["environment"]["HEADRACE_DATABASE"] == url
        done = {"condition": "service_completed_successfully"}
        assert service["depends_on"]["database"] == done
        assert service["image"] == SERVICES["database"]["image"]


def test_a_batcher_sees_requests_as_the_ingress_does() -> None:
    ingress, batcher = (SERVICES[name]["environment"] for name in ("ingress", "batcher"))
    assert batcher["HEADRACE_PROFILE"] == ingress["HEADRACE_PROFILE"]
    port = batcher["HEADRACE_METRICS_PORT"]
    assert f"127.0.0.1:{port}/" in SERVICES["batcher"]["healthcheck"]["test"][-1]


def test_the_proxy_passes_uploads_on_as_they_come() -> None:
    # Else a file would have to arrive, and fit, before anybody who could refuse it sees it.
    assert haproxy("option http-buffer-request") == []
    assert haproxy("http-request wait-for-body") == []


def test_the_proxy_holds_nothing_up_and_repeats_nothing() -> None:
    assert haproxy("option http-no-delay")
    assert haproxy("option abortonclose")
    assert haproxy("retry-on") == ["retry-on conn-failure"]
    for side in ("client", "server"):
        (timeout,) = haproxy(f"timeout {side}")
        assert seconds(timeout.split()[-1]) > LONGEST_REQUEST_S


def test_the_broker_waits_for_the_longest_generation() -> None:
    text = (ROOT / "deploy/rabbitmq/rabbitmq.conf").read_text()
    settings = dict(re.findall(r"^([a-z_.]+) = (\S+)$", text, re.M))
    assert int(settings["consumer_timeout"]) > LONGEST_REQUEST_S * 1000
    # More than any message has with a blob store, and what RabbitMQ 4 takes by default.
    assert int(settings["max_message_size"]) == 16 << 20
    mounts = SERVICES["rabbitmq"]["volumes"]
    assert any(mount.startswith("./deploy/rabbitmq/rabbitmq.conf:") for mount in mounts)


def test_prometheus_finds_everything_that_has_metrics() -> None:
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    found = {
        (name, place["port"])
        for job in prometheus["scrape_configs"]
        for place in job["dns_sd_configs"]
        for name in place["names"]
    }
    measured = {
        (name, int(service["environment"]["HEADRACE_METRICS_PORT"]))
        for name, service in SERVICES.items()
        if "HEADRACE_METRICS_PORT" in service.get("environment", {})
    }
    assert found == {("ingress", 8000), *measured}
    for name, _ in measured:
        assert SERVICES[name]["environment"]["HEADRACE_METRICS_HOST"] == "0.0.0.0"


def test_what_is_mounted_from_here_is_here() -> None:
    mounted = [
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]
    assert "./deploy/grafana/headrace.json" in mounted
    for place in mounted:
        assert (ROOT / place).exists(), place
