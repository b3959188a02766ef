"""Both ports of a transport over RabbitMQ.

The dispatcher is in `rabbit_dispatcher`, the job source in `rabbit_source`; what both stand on in
`rabbit_connection` (one connection, kept up) and `rabbit_wire` (the socket).
"""

from schemas.transport.rabbit_connection import BrokerUnreachable, parse_urls
from schemas.transport.rabbit_dispatcher import DispatcherSettings, RabbitDispatcher
from schemas.transport.rabbit_source import RabbitJobSource, SourceSettings

__all__ = [
    "BrokerUnreachable",
    "DispatcherSettings",
    "RabbitDispatcher",
    "RabbitJobSource",
    "SourceSettings",
    "parse_urls",
]
