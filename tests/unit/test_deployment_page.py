"""The commands and files of the page on deployment are such as the programs and the chart take."""

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import helm_python
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("deployment.md", "operations.md")}
PAGE = PAGES["deployment.md"]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())


def blocks(page: str, language: str) -> Iterator[str]:
    for indent, text in re.findall(rf"^( *)```{language}\n(.*?)^ *```", page, re.M | re.S):
        yield re.sub(rf"^{indent}", "", text, flags=re.M)


def commands(page: str) -> list[list[str]]:
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    inline = re.findall(r"`((?:headrace|kubectl|helm|docker) [^`]+)`", page)
    return [shlex.split(line) for line in [*lines, *inline] if line.strip()]


def of_ours(words: list[str]) -> list[str] | None:
    """What of a command line is one of our commands."""
    for mark in ("--", "exec"):
        if mark in words and "headrace" in words[words.index(mark) :]:
            return words[words.index("headrace", words.index(mark)) :]
    return words if words[0] == "headrace" else None


@pytest.mark.parametrize("name", PAGES)
def test_our_commands_exist_with_their_options(name: str) -> None:
    found = [ours for words in commands(PAGES[name]) if (ours := of_ours(words))]
    assert found
    for _, first, *rest in found:
        (point,) = entry_points(group="headrace.commands", name=first)
        command: click.Command = point.load()
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            context = click.Context(command)
            within = command.get_command(context, rest.pop(0))
            assert within is not None, (first, rest)
            command = within
        known = {flag for option in command.params for flag in option.opts} | {"--help"}
        assert {word for word in rest if word.startswith("--")} <= known, (first, rest)


def test_what_compose_is_told_to_do_it_can() -> None:
    lines = [words for words in commands(PAGE) if words[:2] == ["docker", "compose"]]
    assert len(lines) >= 5
    verbs = {"up", "build", "run", "exec"}
    for words in lines:
        told = [word.partition("=")[0] for word in words[2:] if not word.startswith("-")]
        if "headrace" in told:
            told = told[: told.index("headrace")]
        verb, *services = told
        assert verb in verbs
        assert set(services) <= set(COMPOSE["services"]), words


def test_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"deploy/(?:helm|docker|rabbitmq)[\w./-]*\w", PAGE))
    assert "deploy/helm/headrace" in named
    for path in named:
        assert (ROOT / path).exists(), path


def test_the_values_of_the_page_make_what_its_commands_ask_for() -> None:
    (values,) = (yaml.safe_load(text) for text in blocks(PAGE, "yaml"))
    (install,) = (words for words in commands(PAGE) if "--install" in words)
    release = install[install.index("--install") + 1]
    with helm_python.Chart.load(ROOT / "deploy/helm/headrace") as chart:
        files = chart.render(values, name=release, namespace="llm")
    made = {
        (manifest["kind"].lower(), manifest["metadata"]["name"])
        for path, text in files.items()
        if not path.endswith(".txt")
        for manifest in yaml.safe_load_all(text)
        if manifest
    }
    asked = set(re.findall(r"(?:deploy|deployment)/(headrace-[\w-]+)", PAGE))
    assert asked
    assert {("deployment", name) for name in asked} <= made
    for name in re.findall(r"kubectl .*?exec deploy/(\S+)", files["headrace/templates/NOTES.txt"]):
        assert ("deployment", name) in made


def test_the_secret_of_the_page_has_entries_that_the_chart_reads() -> None:
    known = yaml.safe_load((ROOT / "deploy/helm/headrace/values.yaml").read_text())
    entries = re.findall(r"--from-literal=([\w-]+)=", PAGE)
    assert {"amqp-url", "database-url"} <= set(entries)
    assert set(entries) <= set(known["secretKeys"].values())
    assert f"secret generic {known['existingSecret']} " in PAGE


def test_every_value_that_is_named_is_one() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/headrace/values.yaml").read_text())
    for dotted in re.findall(
        r"`((?:expose|monitoring|keda|serviceAccount|ingress|config)\.\w+)`", PAGE
    ):
        first, second = dotted.split(".")
        assert second in values[first] or dotted == "config.accounts", dotted
