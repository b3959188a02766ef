"""NVIDIA Dynamo's frontend, and a worker of its kind that plays the same script.

The worker takes the place of Dynamo's mocker, whose answers nothing could be held against. It takes
text, so the frontend neither makes tokens of prompts nor text of tokens.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.base import Peer, Site, Unavailable
from benchmarks.processes import Target
from tests.fixtures.ports import free_port


class Dynamo(Peer):
    """NVIDIA Dynamo: frontend (Rust) and a Python worker with the same script, without a broker."""

    name = "dynamo"
    distribution = (".venv-dynamo", "ai-dynamo")

    def start(self, site: Site) -> Target:
        port, python = free_port(), site.installed(".venv-dynamo", "python")
        model = _model()
        env = {
            "DYN_FILE_KV": str(site.place / "dynamo"),
            "DYN_DISCOVERY_BACKEND": "file",
            "HF_HUB_OFFLINE": "1",
        }
        frontend = site.program(
            self.name,
            *(python, "-m", "dynamo.frontend"),
            *("--http-host", "127.0.0.1", "--http-port", str(port)),
            env=env,
        )
        script = Path(__file__).with_name("dynamo_worker.py")
        # -P: or what lies beside the script would be taken for Dynamo.
        worker = site.program(
            "dynamo-worker", python, "-P", str(script), "scripted", str(model), env=env
        )
        return Target(
            name=self.name,
            port=port,
            parts=(("frontend", frontend), ("worker", worker)),
            engine=True,
            hang_up=False,
        )


def _model() -> Path:
    """A directory that looks like a model's: a worker cannot be registered without one.

    Raises:
        Unavailable: What makes it is not installed.
    """
    try:
        from tests.tiny_model import cached

        return cached()
    except ImportError as error:
        raise Unavailable(f"no model to register: {error}") from None
