"""What the page on deployment names is in the chart, and in the tree."""

import re

import helm_python
import yaml

from tests.fixtures.pages import DOCS, ROOT, blocks, shell_commands

PATH = DOCS / "deployment.md"
PAGE = PATH.read_text()


def test_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"deploy/(?:helm|docker|rabbitmq)[\w./-]*\w", PAGE))
    assert "deploy/helm/headrace" in named
    for path in named:
        assert (ROOT / path).exists(), path


def test_the_values_of_the_page_make_what_its_commands_ask_for() -> None:
    (values,) = (yaml.safe_load(one.text) for one in blocks(PATH) if one.language == "yaml")
    (install,) = (words for words in shell_commands(PATH) if "--install" in words)
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
