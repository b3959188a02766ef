"""What is measured, and the place where it is started."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import psutil

from benchmarks.load import Dialect
from benchmarks.processes import Target, broker, running, started
from tests.fixtures.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
STREAMS = 6000
"""What no limit of anybody's may keep out: more than any measure has at once."""


class Unavailable(Exception):
    """A peer that is not installed here, or does not start; tells why."""


class Site:
    """Where peers are started, and what they share.

    Attributes:
        engine_port: Of the engine that all stand before.
        place: A directory for their files and logs.
        stack: Ends what was started.
    """

    def __init__(
        self, stack: ExitStack, place: Path, *, environments: Path, amqp_url: str | None
    ) -> None:
        self.stack = stack
        self.place = place
        self.engine_port = free_port()
        self._environments = environments
        self._amqp_url = amqp_url
        self.engine = self.module("engine", "benchmarks.engine", "--port", str(self.engine_port))

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"

    def broker(self) -> tuple[str, psutil.Process | None]:
        """Another one, with the settings that we ship.

        Raises:
            Unavailable: There is none.
        """
        from tests.fixtures.broker import NotStarted

        shipped = (ROOT / "deploy/rabbitmq/rabbitmq.conf").read_text()
        # A machine for trying has less free disk than a broker's.
        settings = f"loopback_users.guest = true\n{shipped}\ndisk_free_limit.absolute = 100MB\n"
        try:
            return self.stack.enter_context(broker(self._amqp_url, settings=settings))
        except (NotStarted, OSError) as error:
            raise Unavailable(f"no broker: {error}") from None

    def module(self, name: str, *command: str) -> psutil.Process:
        """Start a Python module of this repository."""
        return self.stack.enter_context(running(name, *command, log=self.place / f"{name}.log"))

    def program(
        self, name: str, *command: str, env: Mapping[str, str] | None = None
    ) -> psutil.Process:
        """Start a program."""
        log = self.place / f"{name}.log"
        return self.stack.enter_context(started(name, command, log=log, env=env))

    def installed(self, environment: str, program: str) -> str:
        """A program of one of the environments that are made for peers.

        Raises:
            Unavailable: It is not there.
        """
        path = self._environments / environment / "bin" / program
        if not os.access(path, os.X_OK):
            raise Unavailable(f"not installed in {environment}")
        return str(path)

    def on_path(self, program: str) -> str:
        """A program of the machine.

        Raises:
            Unavailable: It is not there.
        """
        found = shutil.which(program, path=f"{os.defpath}:/usr/sbin:/usr/local/sbin:/sbin")
        if found is None:
            raise Unavailable(f"{program} is not installed")
        return found


class Peer(ABC):
    """Something to measure; the docstring of each tells in a line what it is.

    Attributes:
        name: What it is called everywhere.
        dialects: Those it is measured in.
        ours: Whether it is this service, or what all are compared with: a wrong reply of it voids
            the run, where another's only leaves it out of that measure.
        distribution: The environment and the package that it comes from, if it comes from one.
    """

    name: ClassVar[str]
    dialects: ClassVar[tuple[Dialect, ...]] = ("chat",)
    ours: ClassVar[bool] = False
    distribution: ClassVar[tuple[str, str] | None] = None

    @abstractmethod
    def start(self, site: Site) -> Target:
        """Start it before the engine.

        Raises:
            Unavailable: It is not to be had here.
        """

    @classmethod
    def version(cls, environments: Path) -> str | None:
        """As its package tells."""
        if cls.distribution is None:
            return None
        environment, package = cls.distribution
        places = (environments / environment / "lib").glob("python*/site-packages")
        found = metadata.distributions(name=package, path=[str(place) for place in places])
        return next((distribution.version for distribution in found), None)
