"""The configuration file (`headrace.yaml`): models, keys and the dialect profile.

Validated at start. An error names the file, the line and the field, and quotes no value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ingress.dialects.profile import ProfileName
from schemas.job import Effort
from schemas.model_card import Capabilities, ModelCard, ReasoningSupport


class ConfigError(ValueError):
    """The configuration file cannot be used; the text says where and why."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReasoningConfig(_Section):
    """Reasoning levels of a model, in rising order, and the default."""

    efforts: tuple[Effort, ...] = Field(min_length=1)
    default: Effort

    @model_validator(mode="after")
    def _default_is_listed(self) -> ReasoningConfig:
        if self.default not in self.efforts:
            raise ValueError("default must be one of efforts")
        return self


class CapabilitiesConfig(_Section):
    """What requests may ask of a model."""

    vision: bool = False
    tools: bool = False
    n: bool = True
    logprobs: bool = True
    json_object: bool = True
    json_schema: bool = True
    regex: bool = False
    grammar: bool = False
    completions: bool = False
    reasoning: ReasoningConfig | None = None


class ModelConfig(_Section):
    """One served model; fields as in `schemas.model_card.ModelCard`."""

    id: str = Field(min_length=1)
    aliases: tuple[str, ...] = ()
    display_name: str | None = None
    description: str | None = None
    owned_by: str = "headrace"
    created: int = 0
    context_length: int = Field(gt=0)
    max_output_tokens: int | None = Field(default=None, gt=0)
    vocab_size: int = Field(default=0, ge=0)
    capabilities: CapabilitiesConfig = CapabilitiesConfig()
    honors_sampling: bool = True
    reasoning_headroom: int = Field(default=0, ge=0)
    zdr_supported: bool = False

    def card(self) -> ModelCard:
        """The neutral form."""
        capabilities = self.capabilities.model_dump(exclude={"reasoning"})
        reasoning = self.capabilities.reasoning
        return ModelCard(
            **self.model_dump(exclude={"capabilities"}),
            capabilities=Capabilities(
                **capabilities,
                reasoning=ReasoningSupport(efforts=reasoning.efforts, default=reasoning.default)
                if reasoning
                else None,
            ),
        )


class Config(_Section):
    """The whole file."""

    models: tuple[ModelConfig, ...] = ()
    api_keys: tuple[str, ...] = Field(default=(), repr=False)
    profile: ProfileName | None = None

    @model_validator(mode="after")
    def _names_are_unique(self) -> Config:
        seen: set[str] = set()
        for model in self.models:
            for name in (model.id, *model.aliases):
                if name.casefold() in seen:
                    raise ValueError(f"the model name {name!r} is used twice")
                seen.add(name.casefold())
        return self


def load_config(path: Path) -> Config:
    """Read and check the file.

    Raises:
        ConfigError: It is missing, not YAML, or not as described above.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: {error.problem}") from error
    try:
        return Config.model_validate({} if data is None else data)
    except ValidationError as error:
        lines = [
            f"{path}:{_line(root, item['loc'])}: {_dotted(item['loc'])}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False)
        ]
        raise ConfigError("\n".join(lines)) from error


def _line(node: yaml.Node | None, location: tuple[Any, ...]) -> int:
    """The line of the innermost part of `location` that the file has, from 1."""
    line = 1
    for key in location:
        child: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                if name.value == str(key):
                    line, child = name.start_mark.line + 1, value
        elif isinstance(node, yaml.SequenceNode) and key in range(len(node.value)):
            child = node.value[key]
            line = child.start_mark.line + 1
        if child is None:
            break
        node = child
    return line


def _dotted(location: tuple[Any, ...]) -> str:
    text = ""
    for key in location:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text or "file"
