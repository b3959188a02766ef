"""The configuration file (`headrace.yaml`): models, accounts, keys and the dialect profile.

Validated at start. An error names the file, the line and the field, and quotes no value.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from ingress.accounts.keys import digest_of
from ingress.accounts.terms import AccountId, AccountTerms, Misplaced
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
    """How a model reasons.

    Attributes:
        efforts: Its levels, in rising order.
        default: The one of a request that names none.
    """

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
    """What requests may ask of a model; what is left out stays as the worker tells.

    Attributes:
        vision: Images.
        tools: Calls of tools.
        n: Several choices in one request. True if nobody says.
        logprobs: Log probabilities. True if nobody says.
        json_object: An answer that is a JSON object. True if nobody says.
        json_schema: An answer that obeys a JSON schema. True if nobody says.
        regex: An answer that matches a regular expression.
        grammar: An answer that a grammar derives.
        completions: `/v1/completions`.
        reasoning: How it reasons; null takes reasoning away from a model whose workers tell of it.
    """

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
    """Prices per million tokens.

    Attributes:
        currency: Three letters.
        input_cents_per_million: Cents for a million tokens of prompts.
        output_cents_per_million: Cents for a million tokens of answers.
        cache_read_microcents_per_million: Millionths of a cent for a million tokens of prompts
            that the cache had. Without, they cost what others do.
    """

    currency: str = Field(default="usd", pattern="^[a-z]{3}$")
    input_cents_per_million: int = Field(ge=0)
    output_cents_per_million: int = Field(ge=0)
    cache_read_microcents_per_million: int | None = Field(default=None, ge=0)


class ModelConfig(_Section):
    """One served model; fields as in `schemas.model_card.ModelCard`.

    Only the id is required. What is left out is as the workers of the model tell, so that an
    operator who adds a price need not repeat the window.

    Attributes:
        id: Public id. The workers' spelling of it is the one that is shown.
        aliases: Further names; each is listed as a model of its own. Claude Code offers only names
            that begin with `claude` or `anthropic`.
        display_name: Shown in `/v1/models`.
        description: Shown in `/v1/models`.
        owned_by: Shown in `/v1/models`; `headrace` if nobody says.
        provider: Shown in `/v1/models`.
        tier: Shown in `/v1/models`.
        created: Shown in `/v1/models`, in Unix seconds; 0 if nobody says.
        context_length: Tokens of input and output together. While nobody says, the model is known
            but not listed, and requests for it get 503.
        max_output_tokens: The most tokens of one answer. Without, only the window bounds them.
        vocab_size: Tokens that there are, for checking ids; 0, and unknown, if nobody says.
        capabilities: What requests may ask.
        honors_sampling: Whether sampling fields have an effect. True if nobody says.
        reasoning_headroom: Tokens added to the caller's limit for reasoning, as far as the window
            has room; 0 if nobody says.
        zdr_supported: Whether zero data retention may be asked for. False if nobody says.
        pricing: Prices, for costs and budgets.
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


KeyText = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f]+$")]
"""What a header can carry whole: it ends where there is white space."""


class KeyConfig(_Section):
    """One key of an account: itself, or what is to be known of it.

    Attributes:
        key: The key itself; either this or its digest is required.
        sha256: Of the key, in hexadecimal digits.
        label: Names it in logs and records, beside the account; its place in the list if empty.
        expires_at: From then on it is unknown. Without, it is valid for ever.
    """

    key: KeyText | None = Field(default=None, repr=False)
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-fA-F]{64}$")] | None = Field(
        default=None, repr=False
    )
    label: Annotated[str, StringConstraints(pattern=r"^[\w .@-]{0,64}$")] = ""
    expires_at: AwareDatetime | None = None

    @property
    def digest(self) -> bytes:
        """What the key is known by."""
        return bytes.fromhex(self.sha256) if self.sha256 else digest_of((self.key or "").encode())

    @model_validator(mode="after")
    def _is_one_key(self) -> KeyConfig:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("give either key or sha256")
        return self


class AccountConfig(AccountTerms):
    """One account; fields as in `ingress.accounts.account.Account`, and its keys.

    Attributes:
        id: Lower-case letters, digits, `.`, `-` and `_`, up to 63. It cannot be changed.
        keys: Up to as many as you like; each is the account's.
    """

    id: AccountId
    keys: Annotated[tuple[KeyConfig, ...], Field(strict=False)] = ()

    def named_keys(self) -> Iterator[tuple[str, KeyConfig]]:
        """Every key with the public id that it goes by."""
        for number, key in enumerate(self.keys, start=1):
            yield f"{self.id}:{key.label or number}", key


class Config(_Section):
    """The whole file.

    Attributes:
        models: What is served, beside what workers tell.
        accounts: Who may use it; more of it in accounts.md.
        api_keys: Accepted keys beside those of `--api-key`, each an account of its own.
        profile: What to follow where the documented API and the official clients differ; `wafer` if
            neither this nor `--profile` says.
    """

    models: tuple[ModelConfig, ...] = ()
    accounts: tuple[AccountConfig, ...] = ()
    api_keys: tuple[KeyText, ...] = Field(default=(), repr=False)
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

    @model_validator(mode="after")
    def _accounts_are_told_apart(self) -> Config:
        ids: set[str] = set()
        names: set[str] = set()
        digests = {digest_of(key.encode()) for key in self.api_keys}
        for at, account in enumerate(self.accounts):
            if account.id in ids:
                raise Misplaced(("accounts", at, "id"), f"the id {account.id!r} is used twice")
            ids.add(account.id)
            for number, (name, key) in enumerate(account.named_keys()):
                where = ("accounts", at, "keys", number)
                if name in names:
                    raise Misplaced(where, "the account has two keys of this label")
                if key.digest in digests:
                    raise Misplaced(where, "the same key is in this file twice")
                names.add(name)
                digests.add(key.digest)
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
    twice = [f"{path}:{line}: {name}: written twice" for name, line in _written_twice(root)]
    if twice:
        raise ConfigError("\n".join(twice))
    try:
        return Config.model_validate({} if data is None else data)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_input=False, include_url=False):
            cause = item.get("ctx", {}).get("error")
            location = item["loc"] + (cause.location if isinstance(cause, Misplaced) else ())
            lines.append(f"{path}:{_line(root, location)}: {_dotted(location)}: {item['msg']}")
        raise ConfigError("\n".join(lines)) from None


def _written_twice(root: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Fields that one mapping has twice, with their lines: YAML would quietly take the last."""
    waiting = [root]
    looked_at: set[int] = set()  # an anchor may be in many places, also within itself
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in looked_at:
            continue
        looked_at.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for name, value in node.value:
                if name.value in seen:
                    yield name.value, name.start_mark.line + 1
                seen.add(name.value)
                waiting.append(value)


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
