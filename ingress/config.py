"""The configuration file (`headrace.yaml`): models, keys and the dialect profile.

Validated at start. An error names the file, the line and the field, and quotes no value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ingress.dialects.profile import ProfileName
from schemas.job import Effort
from schemas.model_card import Capabilities, ModelCard, Pricing, ReasoningSupport

_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, the last that RFC 3339 can write."""


class ConfigError(ValueError):
    """The configuration file cannot be used; the text says where and why."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReasoningConfig(_Section):
    """Reasoning levels of a model, in rising order, and the default."""

    efforts: tuple[Effort, ...] = Field(min_length=1)
    default: Effort

    def over(self, told: ReasoningSupport | None) -> ReasoningSupport:
        """These levels, reaching the model the way the worker tells."""
        told = told or ReasoningSupport(efforts=self.efforts, default=self.default)
        return msgspec.structs.replace(told, efforts=self.efforts, default=self.default)

    @model_validator(mode="after")
    def _default_is_listed(self) -> ReasoningConfig:
        if self.default not in self.efforts:
            raise ValueError("default must be one of efforts")
        return self


class CapabilitiesConfig(_Section):
    """What requests may ask of a model; what is left out stays as the worker tells."""

    vision: bool | None = None
    tools: bool | None = None
    n: bool | None = None
    logprobs: bool | None = None
    json_object: bool | None = None
    json_schema: bool | None = None
    regex: bool | None = None
    grammar: bool | None = None
    completions: bool | None = None
    reasoning: ReasoningConfig | None = None

    def over(self, told: Capabilities) -> Capabilities:
        """What the worker tells, with what is written here in its place."""
        written = self.model_dump(exclude={"reasoning"}, exclude_none=True)
        if "reasoning" in self.model_fields_set:
            written["reasoning"] = self.reasoning.over(told.reasoning) if self.reasoning else None
        return msgspec.structs.replace(told, **written)


class PricingConfig(_Section):
    """Prices per million tokens: whole cents, for cached input millionths of a cent."""

    currency: str = Field(default="usd", pattern="^[a-z]{3}$")
    input_cents_per_million: int = Field(ge=0)
    output_cents_per_million: int = Field(ge=0)
    cache_read_microcents_per_million: int | None = Field(default=None, ge=0)


class ModelConfig(_Section):
    """One served model; fields as in `schemas.model_card.ModelCard`.

    Only the id is required. What is left out is as the workers of the model tell, so that an
    operator who adds a price need not repeat the window.
    """

    id: str = Field(min_length=1)
    aliases: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    display_name: str | None = None
    description: str | None = None
    owned_by: str | None = None
    provider: str | None = None
    tier: str | None = None
    created: int | None = Field(default=None, ge=0, le=_LAST_SECOND)
    context_length: int | None = Field(default=None, gt=0)
    max_output_tokens: int | None = Field(default=None, gt=0)
    vocab_size: int | None = Field(default=None, ge=0)
    capabilities: CapabilitiesConfig = CapabilitiesConfig()
    honors_sampling: bool | None = None
    reasoning_headroom: int | None = Field(default=None, ge=0)
    zdr_supported: bool | None = None
    pricing: PricingConfig | None = None

    def card(self, told: ModelCard | None) -> ModelCard | None:
        """The model's card: what a worker tells, with what is written here in its place.

        Args:
            told: The card that a worker announces; None while there is none. Its spelling of the
                id stays, since that names the queue.

        Returns:
            None as long as nobody knows how long the window is.
        """
        if told is None:
            if self.context_length is None:
                return None
            told = ModelCard(id=self.id, context_length=self.context_length)
        written = self.model_dump(exclude={"id", "capabilities", "pricing"}, exclude_none=True)
        if self.pricing is not None:
            written["pricing"] = Pricing(**self.pricing.model_dump())
        capabilities = self.capabilities.over(told.capabilities)
        return msgspec.structs.replace(told, capabilities=capabilities, **written)


class Config(_Section):
    """The whole file."""

    models: tuple[ModelConfig, ...] = ()
    api_keys: tuple[str, ...] = Field(default=(), repr=False)
    profile: ProfileName | None = None

    @model_validator(mode="after")
    def _names_are_unique(self) -> Config:
        seen: set[str] = set()
        for model in self.models:
            for name in (model.id, *(model.aliases or ())):
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
