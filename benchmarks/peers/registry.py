"""All that is measured, in the order of the tables. A new peer is a module, and a line here."""

from __future__ import annotations

from benchmarks.peers.asgi import Asgi
from benchmarks.peers.bare import Bare
from benchmarks.peers.base import Peer
from benchmarks.peers.direct import Direct
from benchmarks.peers.dynamo import Dynamo
from benchmarks.peers.headrace import Dedicated, Memory, Shared, Upstream
from benchmarks.peers.litellm import LiteLlm
from benchmarks.peers.nginx import Nginx
from benchmarks.peers.routers import SglangRouter, Smg, VllmRouter

PEERS: tuple[type[Peer], ...] = (
    Direct,
    Shared,
    Dedicated,
    Memory,
    Upstream,
    Nginx,
    VllmRouter,
    SglangRouter,
    Smg,
    Dynamo,
    Bare,
    Asgi,
    LiteLlm,
)
