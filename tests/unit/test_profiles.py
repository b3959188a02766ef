"""The profile setting, and the page that lists what it changes."""

import re
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from ingress.commands import ingress_options, ingress_settings
from ingress.dialects.profile import OFFICIAL, PROFILES, WAFER, Profile

PAGE = (Path(__file__).parents[2] / "docs/profiles.md").read_text()
CHOICES = [field for field in Profile.__struct_fields__ if field != "name"]


def chosen(tmp_path: Path, *, file: str = "", flag: str = "", variable: str = "") -> str:
    """The profile that `headrace ingress` would run with."""
    found = []

    @click.command()
    @ingress_options
    def command(logs: object, **values: object) -> None:
        found.append(ingress_settings(values).profile)

    path = tmp_path / "headrace.yaml"
    path.write_text(file)
    arguments = ["--config", str(path), *(["--profile", flag] if flag else [])]
    environment = {"HEADRACE_PROFILE": variable} if variable else {}
    result = CliRunner().invoke(command, arguments, env=environment)
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.rule("profiles.default", "profiles.setting")
def test_where_the_profile_comes_from(tmp_path: Path) -> None:
    assert chosen(tmp_path) == "wafer"
    assert chosen(tmp_path, file="profile: official") == "official"
    assert chosen(tmp_path, file="profile: official", variable="wafer") == "wafer"
    assert chosen(tmp_path, file="profile: wafer", variable="wafer", flag="official") == "official"


@pytest.mark.rule("profiles.whole-list")
def test_the_page_lists_every_choice_in_order() -> None:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", PAGE, re.M)
    assert [choice for _, choice, _, _ in rows] == CHOICES
    assert [int(number) for number, *_ in rows] == list(range(1, len(CHOICES) + 1))
    # The numbers in the code's own list are those of the page.
    told = re.findall(r"(\w+): #(\d+) ", Profile.__doc__ or "")
    assert [(choice, number) for number, choice, _, _ in rows] == told


@pytest.mark.rule("profiles.whole-list")
def test_the_profiles_differ_in_every_choice() -> None:
    wafer, official = msgspec.structs.asdict(WAFER), msgspec.structs.asdict(OFFICIAL)
    assert all(wafer[choice] is not official[choice] for choice in CHOICES)
    assert set(PROFILES) == {"wafer", "official"}
