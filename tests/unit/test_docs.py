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
from ingress.config import AccountConfig, KeyConfig, load_config
from ingress.doctor.command import doctor_options
from ingress.embedded import up
from ingress.embedded_batch import run_batch
from ingress.stores.command import database
from ingress.usage.command import usage
from tests import settings_page
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


def test_the_page_of_settings_is_current() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), (
        "run: python -m tests.settings_page"
    )


def test_the_example_file_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    path = tmp_path / "headrace.yaml"
    path.write_text(example)
    config = load_config(path)
    assert [model.id for model in config.models] == ["qwen3-8b"]


def test_every_term_of_an_account_is_named() -> None:
    for section in (AccountConfig, KeyConfig, LimitTerms, BudgetTerms):
        for field in section.model_fields:
            assert f"`{field}`" in ACCOUNTS, field


def test_the_example_account_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", ACCOUNTS, re.S)
    path = tmp_path / "headrace.yaml"
    path.write_text(example)
    assert [account.id for account in load_config(path).accounts] == ["team-a"]


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
