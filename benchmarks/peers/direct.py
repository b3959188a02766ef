"""The engine itself: what everybody's latencies are counted over."""

from __future__ import annotations

from benchmarks.peers.base import Peer, Site
from benchmarks.processes import Target


class Direct(Peer):
    """The engine itself, with nothing before it."""

    name = "direct"
    ours = True

    def start(self, site: Site) -> Target:
        return Target(
            name=self.name, port=site.engine_port, parts=(("engine", site.engine),), engine=True
        )
