"""Which internet addresses are public: those that a stranger's URL may make this service talk to.

One address has many spellings, so this judges addresses and never names, after unwrapping an IPv4
address that an IPv6 address carries. The lists are complete here because the standard library's
differ between versions. Must know no network: it resolves nothing.

Source: IANA special-purpose address registries for IPv4 and IPv6; RFC 6890, 6052, 5214.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's platform services, under a public number
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)

_GLOBAL_6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ISATAP: Final = (0x0000_5EFE, 0x0200_5EFE)


def is_public(address: str) -> bool:
    """Whether an address, in its canonical spelling, belongs to the public internet."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return _is_public_4(parsed) if isinstance(parsed, IPv4Address) else _is_public_6(parsed)


def _is_public_4(address: IPv4Address) -> bool:
    return not any(address in block for block in _NOT_PUBLIC_4)


def _is_public_6(address: IPv6Address) -> bool:
    if (mapped := address.ipv4_mapped) is not None:
        return _is_public_4(mapped)
    low = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _NAT64:
        return _is_public_4(low)
    if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP and not _is_public_4(low):
        return False
    return address in _GLOBAL_6 and not any(address in block for block in _NOT_PUBLIC_6)
