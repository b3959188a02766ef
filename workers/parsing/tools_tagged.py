"""Formats that put each argument between tags of its own.

The values are bare text; the tools' schemas say what they are (`argument_types`). Text arguments
are passed on as they are generated, other values when they are whole.

Source: SGLang 0.5.23, `srt/function_call`: `qwen3_coder_detector`, `minimax_m2`,
`glm4_moe_detector`, `glm47_moe_detector`, `deepseekv32_detector`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from schemas.message import ToolChoice, ToolSpec
from schemas.sampling import Constraint
from workers.parsing.argument_types import TEXT, ArgumentTypes, as_json, string, string_piece
from workers.parsing.base import CallParser
from workers.parsing.reader import Step, TextReader
from workers.parsing.tools_constraint import Calls, calls_constraint

_NAME_LIMIT: Final = 256
_QUOTED: Final = re.compile(r'"([^"]*)"')
_ANY: Final[frozenset[str]] = frozenset()


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """The markup of one format.

    Attributes:
        section: Opening and closing tag round one or several calls.
        call: Opening of a call, up to its name; what follows the name; closing tag.
        argument: The same of an argument.
        trimmed: Left out right after the opening and right before the closing of an argument.
        bare: A call may stand without its section.
        unclosed: An argument may lack its closing tag. It then ends at the next line that opens
            another argument of the tool, or that closes call and section.
    """

    section: tuple[str, str]
    call: tuple[str, str, str]
    argument: tuple[str, str, str]
    trimmed: str = ""
    bare: bool = False
    unclosed: bool = False


class _TaggedArguments(TextReader):
    """Writes an object of arguments, one by one."""

    def __init__(self, choice: int, types: ArgumentTypes) -> None:
        super().__init__(choice)
        self._types = types
        self._tool = ""
        self._count = 0

    def begin(self, tool: str) -> None:
        self.call(tool)
        self._tool = tool
        self._count = 0

    def argument(
        self,
        name: str,
        kinds: frozenset[str],
        end: str,
        trimmed: str = "",
        others: Sequence[str] = (),
    ) -> Step[bool]:
        """Read a value up to its end; False if there is none.

        Args:
            name: Of the argument.
            kinds: What its value may be.
            end: Its closing tag.
            trimmed: Left out at both ends of the value.
            others: What ends it, too, and is not read.
        """
        self.accept()
        opening = "{" if self._count == 0 else ", "
        self._count += 1
        self.arguments(f"{opening}{string(name)}: ")
        if trimmed:
            yield from self.expect(trimmed)
        if kinds == TEXT:
            self.arguments('"')
            found = yield from self.streamed(
                lambda text: self.arguments(string_piece(text)), end, *others, trimmed=trimmed
            )
            self.arguments('"' if found else "")
        else:
            value, found = yield from self.until(end, *others)
            if found:  # what a value is that was cut off cannot be said
                self.arguments(as_json(value.removesuffix(trimmed), kinds))
        if found in others:
            self._at -= len(found)
            self.accept()
        return bool(found)

    def close(self) -> None:
        self.arguments("}" if self._count else "{}")


class _TaggedReader(_TaggedArguments):
    """Calls as `Tags` describe them."""

    def __init__(self, choice: int, tools: Sequence[ToolSpec], tags: Tags) -> None:
        super().__init__(choice, ArgumentTypes(tools))
        self._tags = tags

    def grammar(self) -> Step[None]:
        section, section_end = self._tags.section
        call = self._tags.call[0]
        openings = (section, call) if self._tags.bare else (section,)
        while marker := (yield from self.plain(*openings)):
            yield from self.space()
            if marker == section and not (yield from self.expect(call)):
                self.as_text()
                continue
            if not (yield from self._call()):
                self.as_text()
                continue
            while True:
                yield from self.space()
                if not (yield from self.expect(call)):
                    break
                if not (yield from self._call()):
                    self.broken()
                    break
            yield from self.expect(section_end)
            self.accept()

    def _call(self) -> Step[bool]:
        """Read a call after its opening; False if it is none."""
        _, after, end = self._tags.call
        name, found = yield from self.until(after, limit=_NAME_LIMIT)
        name = name.strip(" \n\"'/")
        if not found or not name:
            return False
        self.begin(name)
        yield from self.space()
        if (yield from self.next_is("{")):
            yield from self.json_value(self.arguments)
            yield from self.space()
            yield from self.expect(end)
            return True
        while True:
            yield from self.space()
            marker = yield from self.expect(self._tags.argument[0], end)
            if marker == end:
                self.close()
                return True
            if not marker:
                if not self._ended:
                    self.close()
                self.broken()
                return True
            if not (yield from self._argument()):
                return True

    def _argument(self) -> Step[bool]:
        _, after, end = self._tags.argument
        head, found = yield from self.until(after, limit=_NAME_LIMIT)
        if not found:
            self.broken()
            return False
        name, kinds = self.described(head)
        others = self._lines_after() if self._tags.unclosed else ()
        return (yield from self.argument(name, kinds, end, self._tags.trimmed, others))

    def _lines_after(self) -> Sequence[str]:
        """The lines that may follow an argument."""
        opening, after, _ = self._tags.argument
        closing = f"\n{self._tags.call[2]}\n{self._tags.section[1]}"
        return closing, *(f"\n{opening}{name}{after}" for name in self._types.names(self._tool))

    def described(self, head: str) -> tuple[str, frozenset[str]]:
        """Name and kinds of an argument, from what its opening tag says."""
        name = head.strip(" \"'")
        return name, self._types.kinds(self._tool, name)


class TaggedFormat:
    """Formats whose tags differ and whose grammar does not."""

    def __init__(self, tags: Tags, calls: Calls) -> None:
        self.markers: tuple[str, str] | None = tags.section
        self._tags = tags
        self._calls = calls

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        return _TaggedReader(choice, tools, self._tags)

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        return calls_constraint(tools, choice, self._calls)


QWEN3_CODER: Final = TaggedFormat(
    Tags(
        section=("<tool_call>", "</tool_call>"),
        call=("<function=", ">", "</function>"),
        argument=("<parameter=", ">", "</parameter>"),
        trimmed="\n",
        bare=True,
        unclosed=True,
    ),
    Calls(
        trigger="<tool_call>\n<function=",
        begin="<tool_call>\n<function={name}>\n",
        end="\n</function>\n</tool_call>",
        separator="\n",
        style="qwen_xml",
    ),
)

MIMO: Final = TaggedFormat(
    Tags(
        section=("<tool_call>", "</tool_call>"),
        call=("<function=", ">", "</function>"),
        argument=("<parameter=", ">", "</parameter>"),
    ),
    Calls(
        trigger="<tool_call>\n<function=",
        begin="<tool_call>\n<function={name}>\n",
        end="\n</function>\n</tool_call>",
        separator="\n",
        style="qwen_xml",
    ),
)

MINIMAX_M2: Final = TaggedFormat(
    Tags(
        section=("<minimax:tool_call>", "</minimax:tool_call>"),
        call=("<invoke name=", ">", "</invoke>"),
        argument=("<parameter name=", ">", "</parameter>"),
    ),
    Calls(
        section=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        trigger="<minimax:tool_call>",
        begin='<invoke name="{name}">\n',
        end="\n</invoke>",
        separator="\n",
        style="minimax_xml",
    ),
)


DOTS: Final = TaggedFormat(
    Tags(
        section=("<dots_function_call>", "</dots_function_call>"),
        call=("<invoke name=", ">", "</invoke>"),
        argument=("<parameter name=", ">", "</parameter>"),
    ),
    Calls(
        section=("<dots_function_call>\n", "\n</dots_function_call>"),
        trigger="<dots_function_call>",
        begin='<invoke name="{name}">\n',
        end="\n</invoke>",
        separator="\n",
        style="minimax_xml",
    ),
)


class _DsmlReader(_TaggedReader):
    """Arguments say themselves whether they are text: `string="true"`."""

    def described(self, head: str) -> tuple[str, frozenset[str]]:
        quoted = _QUOTED.findall(head)
        name = quoted[0] if quoted else head.strip()
        return name, TEXT if quoted[1:] == ["true"] else _ANY


class DsmlFormat(TaggedFormat):
    """DeepSeek V3.2 and later; `space` stands before tag names since V4.1."""

    def __init__(self, block: str, *, space: str = "") -> None:
        prefix = f"｜DSML｜{space}"  # noqa: RUF001 - the model's own spelling
        super().__init__(
            Tags(
                section=(f"<{prefix}{block}>", f"</{prefix}{block}>"),
                call=(f"<{prefix}invoke name=", ">", f"</{prefix}invoke>"),
                argument=(f"<{prefix}parameter name=", ">", f"</{prefix}parameter>"),
                bare=True,
            ),
            Calls(
                section=(f"<{prefix}{block}>\n", f"</{prefix}{block}>"),
                trigger=f"<{prefix}{block}>",
                begin=f'<{prefix}invoke name="{{name}}">\n',
                end=f"\n</{prefix}invoke>\n",
                style="deepseek_v4_1_xml" if space else "deepseek_xml",
            ),
        )

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        return _DsmlReader(choice, tools, self._tags)


class _GlmReader(_TaggedArguments):
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

    Line breaks between the tags, as GLM-4.5 writes them, say nothing.
    """

    _END = "</tool_call>"

    def grammar(self) -> Step[None]:
        while (yield from self.plain("<tool_call>")):
            head, found = yield from self.until("<arg_key>", self._END, limit=_NAME_LIMIT)
            name = head.strip()
            if not found or not re.fullmatch(r"[\w.-]+", name):
                self.as_text()
                continue
            self.begin(name)
            while found == "<arg_key>":
                if not (yield from self._argument()):
                    break
                yield from self.space()
                found = yield from self.expect("<arg_key>", self._END)
            else:
                if found or not self._ended:
                    self.close()
                if not found:
                    self.broken()

    def _argument(self) -> Step[bool]:
        key, found = yield from self.until("</arg_key>", limit=_NAME_LIMIT)
        yield from self.space()
        if not found:
            self.broken()
            return False
        # Models leave out the tag that opens the value now and then.
        tag = yield from self.expect("<arg_value>", "<arg_key>", self._END)
        if tag not in ("<arg_value>", ""):
            self._at -= len(tag)  # and seldom the value: then there is no such argument
            return True
        kinds = self._types.kinds(self._tool, key.strip())
        return (yield from self.argument(key.strip(), kinds, "</arg_value>"))


class GlmFormat:
    """GLM-4.5 to 4.7, and Ling 3."""

    def __init__(self, calls: Calls) -> None:
        self.markers: tuple[str, str] | None = ("<tool_call>", "</tool_call>")
        self._calls = calls

    def parser(self, choice: int, tools: Sequence[ToolSpec]) -> CallParser:
        return _GlmReader(choice, ArgumentTypes(tools, unknown=_ANY))

    def constraint(self, tools: Sequence[ToolSpec], choice: ToolChoice) -> Constraint | None:
        return calls_constraint(tools, choice, self._calls)


GLM45: Final = GlmFormat(
    Calls(
        trigger="<tool_call>",
        begin="<tool_call>{name}\n",
        end="\n</tool_call>",
        separator="\n",
        style="glm_xml",
    )
)
GLM47: Final = GlmFormat(
    Calls(
        trigger="<tool_call>",
        begin="<tool_call>{name}",
        end="</tool_call>",
        style="glm_xml",
    )
)
