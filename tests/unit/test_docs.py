"""What the pages say about options, variables and the configuration file is what the code does."""

import re
from pathlib import Path

import click
import pytest

from ingress.accounts.account_commands import accounts
from ingress.accounts.key_commands import keys
from ingress.accounts.terms import BudgetTerms, LimitTerms
from ingress.batcher import batcher
from ingress.client.commands import EXIT_STATUS, batch
from ingress.commands import ingress
from ingress.config import (
    AccountConfig,
    CapabilitiesConfig,
    KeyConfig,
    ModelConfig,
    PricingConfig,
    load_config,
)
from ingress.doctor.command import doctor_options
from ingress.embedded import up
from ingress.embedded_batch import run_batch
from ingress.stores.command import database
from ingress.usage.command import usage
from workers.__main__ import worker

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/configuration.md").read_text()
ACCOUNTS = (ROOT / "docs/accounts.md").read_text()
COMMANDS: dict[str, click.Command] = {
    "up": up,
    "ingress": ingress,
    "worker": worker,
    "batcher": batcher,
    "accounts": accounts,
    "keys": keys,
    "database": database,
    "usage": usage,
    "batch": batch,
    "batch run": run_batch,
    "doctor": click.command("doctor")(doctor_options(lambda: None)),
}


def rows() -> dict[str, list[str]]:
    """The cells of each row of the table of variables, by variable."""
    found = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("`HEADRACE_"):
            found[cells[0].strip("`")] = cells[1:]
    return found


def options(command: click.Command) -> dict[str, click.Option]:
    """By variable; those of a group are those of its commands."""
    if isinstance(command, click.Group):
        parts = [options(part) for part in command.commands.values()]
        return {variable: option for part in parts for variable, option in part.items()}
    return {
        str(option.envvar): option
        for option in command.params
        if isinstance(option, click.Option) and option.envvar and not option.hidden
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_variable_is_in_the_table(name: str) -> None:
    for variable, option in options(COMMANDS[name]).items():
        assert variable in rows(), variable
        flag, commands, default, _ = rows()[variable]
        assert option.opts[0] in flag
        assert name in commands.split(", ")
        if isinstance(option.default, int | float) and option.default:
            general, *others = default.split("; ")  # "120; worker 30"
            own = dict(other.split() for other in others)
            assert float(own.get(name, general)) == option.default, variable


def test_the_table_names_no_other_variables() -> None:
    known = {variable for command in COMMANDS.values() for variable in options(command)}
    assert set(rows()) == known


def test_the_example_file_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    path = tmp_path / "headrace.yaml"
    path.write_text(example)
    config = load_config(path)
    assert [model.id for model in config.models] == ["qwen3-8b"]


def test_every_field_of_the_file_is_named() -> None:
    for section in (ModelConfig, CapabilitiesConfig, PricingConfig):
        for field in section.model_fields:
            assert f"`{field}`" in PAGE, field


def test_every_term_of_an_account_is_named() -> None:
    for section in (AccountConfig, KeyConfig, LimitTerms, BudgetTerms):
        for field in section.model_fields:
            assert f"`{field}`" in ACCOUNTS, field


def test_the_example_account_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"~~~yaml\n(.*?)~~~", ACCOUNTS, re.S)
    path = tmp_path / "headrace.yaml"
    path.write_text(example)
    assert [account.id for account in load_config(path).accounts] == ["team-a"]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/accounts.md",
        "docs/batch.md",
        "docs/configuration.md",
        "docs/deployment.md",
        "docs/idempotency.md",
        "docs/profiles.md",
        "docs/decisions.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def flags(command: click.Command) -> set[str]:
    parts = command.commands.values() if isinstance(command, click.Group) else ()
    own = {flag for option in command.params for flag in option.opts}
    return own.union(*map(flags, parts))


@pytest.mark.parametrize("page", ["README.md", "docs/accounts.md", "docs/batch.md"])
def test_a_page_names_only_options_that_exist(page: str) -> None:
    known = set().union(*map(flags, COMMANDS.values()))
    others = {"--build", "--scale"}  # docker compose's
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / page).read_text()))
    assert named
    assert named - others - {"--help"} <= known


def test_the_exit_statuses_are_those_of_the_command() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+)", (ROOT / "docs/batch.md").read_text(), re.M)
    told = re.findall(r"^ +(\d+)  (\w+)", EXIT_STATUS, re.M)
    assert rows == told
    assert len(told) == 5
