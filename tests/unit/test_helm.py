"""The Helm chart, rendered by Helm itself: what Kubernetes takes and our programs understand."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from promql_parser import parse
from referencing import Registry, Resource

from ingress.batcher import batcher
from ingress.commands import ingress
from ingress.config import load_config
from ingress.routes.health import health_routes
from ingress.stores.command import database
from schemas.model_card import served_id
from schemas.transport import topology
from tests.settings_page import commands, options
from workers.__main__ import worker

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/headrace"
FULL = ROOT / "deploy/helm/examples/full.yaml"
KUBERNETES = "1.34"
"""Of the schemas; what the chart uses has been there since 1.27."""

FOREIGN = {
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
    "TriggerAuthentication": "keda.sh/v1alpha1",
}
"""What Kubernetes itself has no schemas of."""

COMMANDS = {"ingress": ingress, "worker": worker, "batcher": batcher}
OTHERS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HOME"}

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def rendered(chart: helm_python.Chart, values: dict[str, Any], name: str = "llm") -> list[Manifest]:
    files = chart.render(values, name=name, namespace="models")
    return [
        manifest
        for path, text in files.items()
        if not path.endswith(".txt")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]


@pytest.fixture(scope="module")
def full(chart: helm_python.Chart) -> list[Manifest]:
    return rendered(chart, yaml.safe_load(FULL.read_text()))


def of_kind(manifests: list[Manifest], kind: str, name: str = "") -> list[Manifest]:
    return [m for m in manifests if m["kind"] == kind and m["metadata"]["name"].endswith(name)]


def pods(manifests: list[Manifest]) -> dict[str, dict[str, Any]]:
    """The pods' specifications, by the name of what makes them."""
    return {
        m["metadata"]["name"]: m["spec"]["template"]["spec"]
        for m in manifests
        if m["kind"] in ("Deployment", "Job")
    }


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    found: dict[str, Any] = only
    return found


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    names = [entry["name"] for entry in container(pod)["env"]]
    assert len(names) == len(set(names))
    return {entry["name"]: entry.get("value") for entry in container(pod)["env"]}


@cache
def schema_of(kind: str, api_version: str) -> Draft202012Validator:
    folder = f"kubernetes-json-schema/v{KUBERNETES}.0-local-strict"
    api = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = schema_contents(f"{folder}/{kind.lower()}-{api}.json", KUBERNETES)
    return Draft202012Validator(schema, registry=_definitions(folder))


@cache
def _definitions(folder: str) -> Registry[Any]:
    found = schema_contents(f"{folder}/_definitions.json", KUBERNETES)
    registry: Registry[Any] = Registry()
    return Resource.from_contents(found) @ registry


def test_lint_has_nothing_to_say(chart: helm_python.Chart) -> None:
    for values in ({}, yaml.safe_load(FULL.read_text())):
        report = helm_python.lint(CHART, values, strict=True)
        assert {message["error"] for message in report["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("which", ["defaults", "full"])
def test_manifests_are_what_kubernetes_takes(
    which: str, chart: helm_python.Chart, full: list[Manifest]
) -> None:
    manifests = full if which == "full" else rendered(chart, {})
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(names) == len(set(names))
    for manifest in manifests:
        kind, version = manifest["kind"], manifest["apiVersion"]
        if kind in FOREIGN:
            assert version == FOREIGN[kind]
        else:
            schema_of(kind, version).validate(manifest)
        assert len(manifest["metadata"]["name"]) <= 63
    if which == "full":
        assert set(FOREIGN) <= {kind for kind, _ in names}
        assert len(pods(manifests)) == 6


def test_the_schemas_refuse_what_is_wrong(full: list[Manifest]) -> None:
    service = of_kind(full, "Service")[0]
    wrong = {**service, "spec": {**service["spec"], "selecter": {}}}
    assert not schema_of("Service", "v1").is_valid(wrong)


def a_worker(**values: Any) -> dict[str, Any]:
    return {"workers": [{"name": "a", "model": "m", **values}]}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"ingress": {"grace": "120s"}}, "'/ingress/grace': got string, want integer"),
        ({"ingres": {}}, "additional properties 'ingres' not allowed"),
        ({"logLevel": "loud"}, "'/logLevel': value must be one of 'debug', 'info'"),
        (a_worker(gpu=1), "'/workers/0': additional properties 'gpu' not allowed"),
        ({"workers": [{"name": "a"}]}, "'/workers/0': missing property 'model'"),
        (a_worker(batchShare=2), "'/workers/0/batchShare': maximum: got 2, want 1"),
        (a_worker(shm="8 GB"), "'/workers/0/shm': '8 GB' does not match"),
        (a_worker(name="A_b"), "'/workers/0/name': 'A_b' does not match"),
        (a_worker(autoscaling={"minReplicas": 0}), "minReplicas': minimum: got 0, want 1"),
        (
            {"config": {"api_keys": ["hr_secret"]}},
            "put them into the Secret",
        ),
        (
            {"config": {"accounts": [{"id": "team-a", "keys": [{"key": "hr_secret"}]}]}},
            "A key of the account team-a stands in plain text",
        ),
        ({"blobs": {"location": "s3://id:hr_secret@b"}}, "must not have credentials in it"),
        ({"batcher": {"enabled": True}}, "batcher.enabled needs blobs.location"),
        (
            {"blobs": {"location": "s3://bucket", "existingClaim": "blobs"}},
            "blobs.location or blobs.existingClaim, not both",
        ),
        (
            {
                "database": {"enabled": False},
                "config": {"accounts": [{"id": "team-a", "limits": {"concurrency": 1}}]},
            },
            "The account team-a has limits",
        ),
        ({"expose": {"ingress": {"enabled": True}}}, "needs expose.host"),
        ({"expose": {"httpRoute": {"enabled": True}}}, "needs expose.httpRoute.parentRefs"),
        (
            {"workers": [{"name": "a", "model": "m"}, {"name": "a", "model": "n"}]},
            "Two workers are called a",
        ),
        (a_worker(engine="upstream"), "The worker a has the engine upstream and no upstreamUrl"),
        (a_worker(concurrency=4, batchFloor=4), "must leave some of its 4 slots"),
        (a_worker(autoscaling={"enabled": True}), "busy workers would be taken away"),
        (a_worker(replicas=2, cache={"size": "1Gi"}), "give cache.accessModes [ReadWriteMany]"),
    ],
)
def test_a_bad_value_is_refused(
    values: dict[str, Any], told: str, chart: helm_python.Chart
) -> None:
    with pytest.raises(helm_python.HelmError) as refusal:
        rendered(chart, values)
    assert told in str(refusal.value)
    assert "hr_secret" not in str(refusal.value)


def test_every_variable_and_flag_exists(full: list[Manifest]) -> None:
    seen = set()
    for name, pod in pods(full).items():
        command, *arguments = container(pod)["args"]
        seen.add(command)
        group = database if command == "database" else COMMANDS[command]
        known = {option.envvar: option for _, one in commands(group) for option in options(one)}
        for variable in environment(pod):
            assert variable in known or variable in {*OTHERS, "OTEL_EXPORTER_OTLP_ENDPOINT"}, name
        flags = {flag for option in known.values() for flag in option.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= flags
    assert seen == {*COMMANDS, "database"}


def test_values_arrive_as_they_were_written(full: list[Manifest]) -> None:
    found = pods(full)
    large = container(found["llm-headrace-worker-glm-large"])
    assert large["args"][1:] == [
        *("--engine-arg", "context_length=1048576"),
        *("--engine-arg", "enable_metrics=true"),
        *("--engine-arg", "mem_fraction_static=0.85"),
        *("--engine-arg", "quantization=fp8"),
        *("--engine-arg", "tp_size=8"),
    ]
    assert large["resources"]["limits"] == {"nvidia.com/gpu": 8}
    variables = environment(found["llm-headrace-worker-qwen3-8b"])
    assert variables["HEADRACE_BATCH_SHARE"] == "0.25"
    assert variables["HEADRACE_CONCURRENCY"] == "64"
    assert "limits" not in container(found["llm-headrace-worker-elsewhere"])["resources"]


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "/models/glm/large", "./here", "plain"])
def test_the_chart_names_models_as_workers_do(model: str, chart: helm_python.Chart) -> None:
    (pod,) = (
        pod
        for name, pod in pods(rendered(chart, a_worker(model=model))).items()
        if name.endswith("-worker-a")
    )
    assert environment(pod)["HEADRACE_SERVED_ID"] == served_id(model)


def test_pods_are_unprivileged_and_told_nothing_by_kubernetes(full: list[Manifest]) -> None:
    for pod in pods(full).values():
        # A Service that is called headrace would set HEADRACE_PORT to tcp://…
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container(pod)["resources"]["requests"]
        mounted = {mount["name"] for mount in container(pod)["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_probes_ask_for_what_there_is(full: list[Manifest]) -> None:
    class NoServices: ...

    paths = {
        route.path
        for route in health_routes(NoServices()).routes  # type: ignore[arg-type]
        if isinstance(route, APIRoute)
    }
    probed = set()
    for pod in pods(full).values():
        ports = {port["name"]: port["containerPort"] for port in container(pod).get("ports", [])}
        variables = environment(pod)
        for port in ports.values():
            assert str(port) in (
                variables.get("HEADRACE_PORT"),
                variables.get("HEADRACE_METRICS_PORT"),
            )
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if "httpGet" in container(pod).get(probe, {}):
                asked = container(pod)[probe]["httpGet"]
                assert asked["port"] in ports
                probed.add(asked["path"])
    assert probed == paths == {"/health/live", "/health/ready", "/metrics"}


def test_a_worker_is_ready_when_it_tells_of_slots(full: list[Manifest]) -> None:
    pod = pods(full)["llm-headrace-worker-qwen3-8b"]
    script = container(pod)["readinessProbe"]["exec"]["command"][-1]
    assert container(pod)["startupProbe"]["exec"]["command"][-1] == script
    compile(script, "probe", "exec")
    (metric,) = set(re.findall(r"headrace_\w+", script))
    assert f"`{metric}`" in (ROOT / "docs/metrics.md").read_text()


def test_nobody_is_killed_within_the_grace_time(full: list[Manifest]) -> None:
    for name, pod in pods(full).items():
        if "HEADRACE_GRACE" not in environment(pod):
            assert "database" in name
            continue
        pause = container(pod).get("lifecycle", {}).get("preStop", {}).get("exec", {})
        before = int(pause["command"][1]) if pause else 0
        grace = int(environment(pod)["HEADRACE_GRACE"])
        assert pod["terminationGracePeriodSeconds"] >= before + grace + 10


def test_no_secret_is_written_into_a_manifest(full: list[Manifest]) -> None:
    assert not of_kind(full, "Secret")
    entries = yaml.safe_load((CHART / "values.yaml").read_text())["secretKeys"].values()
    for pod in pods(full).values():
        for entry in container(pod)["env"]:
            if re.search(r"KEY|SECRET|AMQP|DATABASE|TOKEN", entry["name"]):
                reference = entry["valueFrom"]["secretKeyRef"]
                assert reference["name"] == "headrace"
                assert reference["key"] in entries


def test_the_configuration_file_is_accepted_and_a_change_of_it_makes_new_pods(
    full: list[Manifest], chart: helm_python.Chart, tmp_path: Path
) -> None:
    (config,) = of_kind(full, "ConfigMap", "-config")
    path = tmp_path / "headrace.yaml"
    path.write_text(config["data"]["headrace.yaml"])
    assert [account.id for account in load_config(path).accounts] == ["team-a"]

    def stamp(values: dict[str, Any]) -> str:
        (deployment,) = of_kind(rendered(chart, values), "Deployment", "-ingress")
        return str(deployment["spec"]["template"]["metadata"].get("annotations"))

    assert (
        len({stamp({}), *(stamp({"config": {"profile": p}}) for p in ("wafer", "official"))}) == 3
    )


def test_tables_are_ready_before_the_programs(full: list[Manifest]) -> None:
    (job,) = of_kind(full, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert container(job["spec"]["template"]["spec"])["args"] == ["database", "upgrade"]


def test_workers_are_scaled_by_what_waits_and_what_runs_together(full: list[Manifest]) -> None:
    (scaled,) = of_kind(full, "ScaledObject")
    spec = scaled["spec"]
    triggers = {trigger["name"]: trigger for trigger in spec["triggers"]}
    formula = spec["advanced"]["scalingModifiers"]["formula"]
    assert set(formula.split(" + ")) == set(triggers) == {"queued", "running", "batch"}
    assert spec["advanced"]["scalingModifiers"]["target"] == "64"
    for name, kind in (("queued", "interactive"), ("batch", "batch")):
        queue = topology.job_queue("qwen3-8b", kind)  # type: ignore[arg-type]
        assert triggers[name]["metadata"]["queueName"] == queue
    query = triggers["running"]["metadata"]["query"]
    parse(query)
    page = (ROOT / "docs/metrics.md").read_text()
    assert re.search(r"`headrace_slots` \| gauge \| `model`, `state` .*live, batch, free", page)
    assert 'headrace_slots{namespace="models",model="qwen3-8b",state=~"live|batch"}' in query
    named = {m["metadata"]["name"] for m in of_kind(full, "TriggerAuthentication")}
    assert triggers["queued"]["authenticationRef"]["name"] in named
    (deployment,) = of_kind(full, "Deployment", spec["scaleTargetRef"]["name"])
    assert "replicas" not in deployment["spec"]


def test_alerts_and_dashboard_are_those_of_the_project(full: list[Manifest]) -> None:
    hint = "cp {} {}"
    for own, copy in (
        ("deploy/prometheus/alerts.yaml", "files/alerts.yaml"),
        ("deploy/grafana/headrace.json", "files/dashboard.json"),
    ):
        same = (CHART / copy).read_bytes() == (ROOT / own).read_bytes()
        assert same, hint.format(own, f"deploy/helm/headrace/{copy}")
    (rules,) = of_kind(full, "PrometheusRule")
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    assert rules["spec"] == alerts
    (dashboard,) = of_kind(full, "ConfigMap", "-dashboard")
    written = dashboard["data"]["headrace.json"]
    assert written == (ROOT / "deploy/grafana/headrace.json").read_text()


def test_jobs_are_called_as_the_alerts_expect(full: list[Manifest]) -> None:
    alerts = (ROOT / "deploy/prometheus/alerts.yaml").read_text()
    asked = set(re.findall(r'job=~"\.\*([\w-]+)"', alerts))
    given = set()
    for monitor in of_kind(full, "PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        (job,) = endpoint["relabelings"]
        given.add(job["replacement"].rpartition("/")[2])
        selected = monitor["spec"]["selector"]["matchLabels"].items()
        found = [
            deployment["spec"]["template"]
            for deployment in of_kind(full, "Deployment")
            if selected <= deployment["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert found
        for template in found:
            ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
            assert endpoint["port"] in ports
    assert asked
    assert asked <= given


def test_streams_pass_the_ingress_as_they_come(full: list[Manifest]) -> None:
    (outside,) = of_kind(full, "Ingress")
    prefix = "nginx.ingress.kubernetes.io/"
    annotations = outside["metadata"]["annotations"]
    assert annotations[prefix + "proxy-buffering"] == "off"
    assert annotations[prefix + "proxy-request-buffering"] == "off"
    assert int(annotations[prefix + "proxy-read-timeout"]) > 3600
    paths = {path["path"] for path in outside["spec"]["rules"][0]["http"]["paths"]}
    assert "/v1" in paths
    assert not paths & {"/", "/metrics", "/health", "/admin/v1"}
    (route,) = of_kind(full, "HTTPRoute")
    assert route["spec"]["rules"][0]["timeouts"]["request"] == "0s"


def test_the_broker_of_the_example_is_set_up_as_ours() -> None:
    example = yaml.safe_load((ROOT / "deploy/helm/examples/rabbitmq.yaml").read_text())
    pattern = r"^([a-z_.]+) = (\S+)$"
    given = dict(re.findall(pattern, example["spec"]["rabbitmq"]["additionalConfig"], re.M))
    ours = dict(re.findall(pattern, (ROOT / "deploy/rabbitmq/rabbitmq.conf").read_text(), re.M))
    assert given == {name: value for name, value in ours.items() if not name.startswith("log.")}
