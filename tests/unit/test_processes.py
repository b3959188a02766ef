"""Processes behind one port: real ones, small enough to start in no time, and their real parent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from ingress import place
from ingress.place import Place
from ingress.processes import Order
from tests.fixtures.ports import free_port
from tests.fixtures.stack import until

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 60.0
"""For what takes no time on a machine that has any."""

# Does as the file MODE-NUMBER says, if there is one. To who connects it says its number.
CHILD = """
import json, os, select, signal, socket, sys
notes, place = sys.argv[1], json.loads(sys.argv[-1])
number = place["number"]
def note(what):
    open(f"{notes}/{what}-{number}-{os.getpid()}", "w").close()
def told(mode):
    return os.path.exists(f"{notes}/{mode}-{number}")
def end(*_):
    note("ended")
    sys.exit(40 + number)
note("started")
if told("broken"):
    sys.exit(2)
signal.signal(signal.SIGTERM, signal.SIG_IGN if told("deaf") else end)
listening = socket.socket(fileno=place["sockets"][0])
listening.listen()
note("up")
kept, parent = [], os.getppid()
os.write(place["life"], b".")
while os.getppid() == parent:
    if not told("mute"):
        os.write(place["life"], b".")
    if select.select([listening], [], [], 0.02)[0]:
        kept.append(listening.accept()[0])
        kept[-1].sendall(str(number).encode())
"""


class Pod:
    """A parent with its processes."""

    def __init__(self, parent: asyncio.subprocess.Process, notes: Path, port: int) -> None:
        self.parent = parent
        self.notes = notes
        self.port = port

    def noted(self, what: str, number: int) -> list[int]:
        """The process ids."""
        return [int(note.name.split("-")[2]) for note in self.notes.glob(f"{what}-{number}-*")]

    def told(self, event: str) -> list[Any]:
        lines = map(orjson.loads, (self.notes / "log").read_bytes().splitlines())
        return [line for line in lines if line["event"] == event]

    async def reach(self, number: int) -> socket.socket:
        """A connection to that process."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                connection = socket.create_connection(("127.0.0.1", self.port))
                if connection.recv(1) == str(number).encode():
                    connection.setblocking(False)
                    return connection
                connection.close()
                await asyncio.sleep(0)

    async def end(self) -> int:
        self.parent.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            return await self.parent.wait()


@asynccontextmanager
async def pod(notes: Path, processes: int = 2, **given: Any) -> AsyncIterator[Pod]:
    order = Order(
        command=(sys.executable, "-I", "-S", "-c", CHILD, str(notes)),
        processes=processes,
        host="127.0.0.1",
        port=given.pop("port", 0) or free_port(),
        **{"grace_s": 10.0, "pause_s": 0.02, "log_json": True, **given},
    )
    with (notes / "log").open("wb") as log:
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ingress.processes", msgspec.json.encode(order).decode()),
            stdout=log,
        )
    started = Pod(parent, notes, order.port)
    try:
        yield started
    finally:
        if parent.returncode is None:
            parent.kill()
            await parent.wait()


async def test_one_that_is_killed_is_replaced_and_the_others_do_not_notice(tmp_path: Path) -> None:
    async with pod(tmp_path) as running:
        await until(lambda: running.noted("up", 2), timeout_s=PATIENCE_S)
        (first,), (second,) = running.noted("up", 1), running.noted("up", 2)
        with closing(await running.reach(1)) as cut, closing(await running.reach(2)) as kept:
            os.kill(first, signal.SIGKILL)
            await until(lambda: len(running.noted("up", 1)) == 2, timeout_s=PATIENCE_S)
            assert cut.recv(1) == b""
            with pytest.raises(BlockingIOError):
                kept.recv(1)
        (await running.reach(1)).close()
        assert running.noted("up", 2) == [second]
        (told,) = running.told("ingress.process_ended")
        assert (told["process"], told["status"], told["served"]) == (1, 137, True)
        assert await running.end() == 42
        assert (len(running.noted("ended", 1)), running.noted("ended", 2)) == (1, [second])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", running.port))


async def test_where_the_first_cannot_start_none_is_tried(tmp_path: Path) -> None:
    (tmp_path / "broken-1").touch()
    async with pod(tmp_path) as running:
        assert await running.parent.wait() == 2
        assert (len(running.noted("started", 1)), running.noted("started", 2)) == (1, [])
        assert (tmp_path / "log").read_bytes() == b"", "it has said itself what is wrong"


async def test_one_that_fails_to_start_or_hangs_beside_others(tmp_path: Path) -> None:
    (tmp_path / "broken-2").touch()
    (tmp_path / "mute-2").touch()
    async with pod(tmp_path, silence_s=0.5) as running:
        await until(lambda: len(running.noted("started", 2)) >= 2, timeout_s=PATIENCE_S)
        (tmp_path / "broken-2").unlink()
        await until(lambda: running.told("ingress.process_hangs"), timeout_s=PATIENCE_S)
        (tmp_path / "mute-2").unlink()
        (await running.reach(2)).close()
        ended = running.told("ingress.process_ended")
        assert {told["status"] for told in ended if told["process"] == 2} == {2, 137}


async def test_one_that_does_not_end_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    (tmp_path / "deaf-1").touch()
    async with pod(tmp_path, processes=1, grace_s=0.05, last_words_s=0.05) as running:
        await until(lambda: running.noted("up", 1), timeout_s=PATIENCE_S)
        assert await running.end() == 137


async def test_a_port_that_somebody_has_is_not_shared(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        async with pod(tmp_path, port=other.getsockname()[1]) as running:
            assert await running.parent.wait() == 3
            (told,) = running.told("ingress.cannot_start")
            assert told["reason"] == "Address already in use"


async def test_a_process_shows_that_it_lives_until_nobody_is_there_to_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, "SIGN_EVERY_S", 0.01)
    seen, life = os.pipe()
    only = Place(number=1, of=1, directory="", sockets=(), life=life)
    orphaned = asyncio.Event()
    try:
        async with only.living(orphaned.set):
            await asyncio.sleep(0)
            assert os.read(seen, 10) == b"."
            assert not orphaned.is_set()
            os.close(seen)
            async with asyncio.timeout(5):
                await orphaned.wait()
    finally:
        os.close(life)
