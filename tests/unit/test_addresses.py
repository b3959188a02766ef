"""Public addresses are told from all others, whatever an address carries inside."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.addresses import is_public


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.215.14", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1",
     "223.255.255.255", "2606:4700::1111", "2a00:1450:4001::8a", "64:ff9b::1.1.1.1",
     "::ffff:1.1.1.1"],
)  # fmt: skip
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.9.9.9",
     "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.170",
     "192.0.2.1", "192.88.99.1", "192.168.0.9", "198.18.0.1", "198.19.255.255", "198.51.100.1",
     "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
     "::", "::1", "::10.0.0.1", "::ffff:10.0.0.1", "::ffff:192.168.0.9", "::ffff:127.0.0.1",
     "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1.1.1.1", "100::1", "fc00::1",
     "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2001::1",
     "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:10::1", "2001:20::1", "2001:db8::1",
     "2002:a00:1::1", "2002:101:101::1", "3fff::1", "4000::1",
     "2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:192.168.0.1"],
)  # fmt: skip
def test_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("text", ["", "localhost", "0x7f.1", "2130706433", "0177.0.0.1", "1.1"])
def test_other_spellings_are_no_addresses(text: str) -> None:
    assert not is_public(text)


@given(st.ip_addresses(v=4))
def test_an_address_is_as_public_as_its_wrappings(address: IPv4Address) -> None:
    mapped = IPv6Address(0xFFFF << 32 | int(address))
    translated = IPv6Address(0x64_FF9B << 96 | int(address))
    assert is_public(str(mapped)) == is_public(str(translated)) == is_public(str(address))


@given(st.ip_addresses(v=4))
def test_what_the_standard_library_calls_private_is_not_public(address: IPv4Address) -> None:
    if address.is_private or address.is_multicast or address.is_reserved:
        assert not is_public(str(address))


@given(st.ip_addresses(v=6))
def test_an_ipv6_address_is_of_the_global_block_or_carries_a_public_one(
    address: IPv6Address,
) -> None:
    if is_public(str(address)):
        assert int(address) >> 125 == 1 or is_public(str(IPv4Address(int(address) & 0xFFFFFFFF)))
