"""Tool-call fragments of an upstream to the Deltas of calls that follow one another.

Servers differ in what they repeat and what they leave out, and may let calls interleave.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.delta import ArgumentsDelta, ToolCallStarted
from workers.engines.upstream_errors import failed
from workers.parsing.base import PartDelta


class CallFunction(msgspec.Struct):
    """Name and arguments, either of which may be missing from a fragment."""

    name: str | None = None
    arguments: Any = None  # text; some servers send the object itself


class CallFragment(msgspec.Struct):
    """One entry of `delta.tool_calls`."""

    index: int | None = None
    id: str | None = None
    function: CallFunction | None = None


class _Call:
    """One tool call. `waiting` is argument text not passed on yet."""

    __slots__ = ("arguments", "id", "index", "name", "waiting")

    def __init__(self, index: int | None, id: str | None, name: str) -> None:
        self.index = index
        self.id = id
        self.name = name
        self.arguments = ""
        self.waiting: list[str] = []

    def complete(self) -> bool:
        """Whether the arguments are a whole JSON text."""
        try:
            msgspec.json.decode(self.arguments)
        except msgspec.DecodeError:
            return False
        return True


class CallSequence:
    """Tool-call fragments, put into the order of the reply grammar: one call after the other.

    A fragment belongs to the call with its index. Where a server leaves the index out, or gives
    every call the same, a new id together with a name begins a call; where ids are left out, too, a
    name after a call that is complete. Names and ids repeated with later fragments begin nothing.
    Fragments of a call wait until the calls before it are complete. So must text that comes while a
    call is `unfinished`: arguments follow their call directly.
    """

    def __init__(self, choice: int) -> None:
        self._choice = choice
        self._calls: list[_Call] = []
        self._open = -1  # the call whose Deltas are being passed on
        self._closed = -1  # the last call that text has followed

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def unfinished(self) -> bool:
        """Whether the arguments of the call passed on last are not whole yet."""
        return self._open > self._closed and not self._calls[self._open].complete()

    def close(self) -> None:
        """Something else follows the calls so far."""
        self._closed = self._open

    def feed(self, fragment: CallFragment) -> list[PartDelta]:
        """Take a fragment.

        Raises:
            GenerationFailed: It has arguments and belongs to no call.
        """
        function = fragment.function or CallFunction()
        arguments = "" if function.arguments is None else function.arguments
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        call = self._find(fragment, function.name, arguments)
        if call is None:
            if not function.name:
                if arguments:
                    raise failed("upstream sent arguments of a nameless tool call")
                return []
            call = _Call(fragment.index, fragment.id, function.name)
            self._calls.append(call)
        elif self._calls.index(call) < max(self._open, self._closed + 1):
            if arguments.strip():
                raise failed("upstream went on with a tool call that was complete")
            arguments = ""
        if arguments:
            call.arguments += arguments
            call.waiting.append(arguments)
        return self._pass_on(all_calls=False)

    def finish(self) -> list[PartDelta]:
        """Everything that still waits."""
        return self._pass_on(all_calls=True)

    def _find(self, fragment: CallFragment, name: str | None, arguments: str) -> _Call | None:
        """The call a fragment goes on with; None if it begins one."""
        if fragment.index is None:
            candidates = self._calls[-1:]
        else:
            candidates = [call for call in self._calls if call.index == fragment.index]
        if not candidates:
            return None
        call = candidates[-1]
        if not name:
            return call
        if fragment.id and call.id:
            return call if fragment.id == call.id else None
        if fragment.index is not None:
            begins = call.complete() and (name != call.name or arguments.strip() != "")
        else:
            begins = name != call.name or (arguments != "" and call.complete())
        return None if begins else call

    def _pass_on(self, *, all_calls: bool) -> list[PartDelta]:
        deltas: list[PartDelta] = []
        while True:
            if self._open >= 0:
                call = self._calls[self._open]
                deltas += [ArgumentsDelta(self._choice, self._open, text) for text in call.waiting]
                call.waiting.clear()
            if self._open + 1 == len(self._calls):
                return deltas
            if self._open >= 0 and not all_calls and not self._calls[self._open].complete():
                return deltas
            self._open += 1
            deltas.append(ToolCallStarted(self._choice, self._open, self._calls[self._open].name))
