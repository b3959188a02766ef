"""The last check before a connection: only addresses that were checked get a socket."""

from __future__ import annotations

import socket

import pytest
from aiohttp import AddrInfoType

from ingress.media import _Checked, _checked_socket

CHECKED = {"93.184.215.14": 443, "2606:2800:21f::1": 443}


def info(address: str, port: int) -> AddrInfoType:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    where = (address, port, 0, 0) if ":" in address else (address, port)
    return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where


@pytest.mark.parametrize("address", CHECKED)
def test_a_checked_address_gets_a_socket(address: str) -> None:
    with _checked_socket(info(address, 443), CHECKED) as opened:
        assert opened.family == info(address, 443)[0]


@pytest.mark.parametrize(
    ("address", "port"),
    [("93.184.215.15", 443), ("93.184.215.14", 8443), ("127.0.0.1", 443), ("::1", 443)],
)
def test_any_other_gets_none(address: str, port: int) -> None:
    with pytest.raises(OSError, match="not checked"):
        _checked_socket(info(address, port), CHECKED)


async def test_whatever_is_asked_the_checked_addresses_are_the_answer() -> None:
    found = await _Checked(CHECKED).resolve("elsewhere.example", 8080)
    assert {(result["host"], result["port"]) for result in found} == set(CHECKED.items())
    assert {result["family"] for result in found} == {socket.AF_INET, socket.AF_INET6}
