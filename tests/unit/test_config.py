"""The configuration file: what it gives, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingress.config import ConfigError, load_config

GOOD = """\
profile: official
api_keys: [key-one]
models:
  - id: Big/Model
    aliases: [big]
    context_length: 8192
    max_output_tokens: 1024
    honors_sampling: false
    capabilities:
      n: false
      reasoning:
        efforts: [none, low, high]
        default: low
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "headrace.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_card_from_the_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.profile == "official"
    assert config.api_keys == ("key-one",)
    card = config.models[0].card(None)
    assert card is not None
    assert card.id == "Big/Model"
    assert card.default_output_tokens == 1024
    assert not card.honors_sampling
    assert not card.capabilities.n
    assert card.capabilities.reasoning is not None
    assert card.capabilities.reasoning.efforts == ("none", "low", "high")


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")).models == ()


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [
        ("context_length: 8192", "context_length: many", 6, "models[0].context_length"),
        ("context_length: 8192", "context_length: -1", 6, "models[0].context_length"),
        ("    max_output_tokens: 1024\n", "    created: -1\n", 7, "models[0].created"),
        ("[big]", "[big, '']", 5, "models[0].aliases[1]"),
        ("honors_sampling", "honours_sampling", 8, "models[0].honours_sampling"),
        ("default: low", "default: max", 11, "models[0].capabilities.reasoning"),
        ("low, high]", "low, hihg]", 12, "models[0].capabilities.reasoning.efforts[2]"),
        ("profile: official", "profile: offical", 1, "profile"),
    ],
)
def test_an_error_names_line_and_field(
    tmp_path: Path, old: str, new: str, line: int, field: str
) -> None:
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert f"{path}:{line}: {field}: " in str(raised.value)


def test_broken_yaml_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "models:\n  - id: [\n")
    with pytest.raises(ConfigError, match=rf"{path}:\d+: "):
        load_config(path)


def test_a_name_used_twice(tmp_path: Path) -> None:
    second = "  - id: other\n    aliases: [BIG]\n    context_length: 10\n"
    with pytest.raises(ConfigError, match="'BIG' is used twice"):
        load_config(write(tmp_path, GOOD + second))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent.yaml")


def test_a_key_is_not_shown(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("[key-one]", "[key-one, 5, {secret-key: 1}]"))
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert "secret-key" not in str(raised.value)
    assert "key-one" not in repr(load_config(write(tmp_path, GOOD)))
