"""The compiled routers of the two large engines; they pass an engine's answer on as it is."""

from __future__ import annotations

from typing import ClassVar

from benchmarks.peers.base import Peer, Site
from benchmarks.processes import Target
from tests.fixtures.ports import free_port


class Router(Peer):
    """One that is started before a list of engines.

    Of their policies the one that looks into no prompt: there is one engine, and nothing to choose.
    Nor is there another to turn to when its connections end, as they do where clients leave.
    """

    command: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]] = ()

    def start(self, site: Site) -> Target:
        port, program = free_port(), site.installed(".venv-peers", self.command[0])
        process = site.program(
            self.name,
            *(program, *self.command[1:], "--host", "127.0.0.1", "--port", str(port)),
            *("--worker-urls", site.engine_url, "--policy", "round_robin"),
            "--disable-circuit-breaker",
            *("--prometheus-port", str(free_port()), *self.options),
        )
        return Target(name=self.name, port=port, parts=(("router", process),))


class VllmRouter(Router):
    """VLLM's router (Rust), round_robin."""

    name = "vllm-router"
    distribution = (".venv-peers", "vllm-router")
    command = ("vllm-router",)  # its limit of requests is far away


class SglangRouter(Router):
    """SGLang's router (Rust), round_robin, no limit of requests."""

    name = "sglang-router"
    distribution = (".venv-peers", "sglang-router")
    command = ("sglang-router", "launch")
    options = ("--max-concurrent-requests", "-1")


class Smg(Router):
    """Its successor, Shepherd Model Gateway (Rust), round_robin, no limit of requests."""

    name = "smg"
    distribution = (".venv-peers", "smg")
    command = ("smg", "launch")
    options = ("--max-concurrent-requests", "-1")
