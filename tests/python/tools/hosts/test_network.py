"""Which interface ringdp binds to between hosts, and the reason that is given."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from ringdp.tools.hosts.network import chosen, interfaces

FOUND = interfaces()


@pytest.mark.parametrize(
    ("master", "why"),
    [
        ("no-such-host.invalid", "the first one: there is no route to no-such-host.invalid"),
        ("127.0.0.1", "the first one: 127.0.0.1 resolves to this host's loopback"),
        *((one.address, f"it routes to {one.address}") for one in FOUND if not ip_address(one.address).is_loopback),
    ],
)
def test_the_reason_for_the_interface_that_is_chosen(master, why):
    interface, said = chosen(FOUND, master, "")
    assert said == why
    assert master in (interface.address, "127.0.0.1", "no-such-host.invalid")


def test_an_interface_that_is_named_is_taken_or_refused():
    for one in FOUND:
        interface, said = chosen(FOUND, "127.0.0.1", one.name)
        assert (interface.name, said) == (one.name, "RINGDP_SOCKET_IFNAME")
    with pytest.raises(ValueError, match="no-such-card"):
        chosen(FOUND, "127.0.0.1", "no-such-card")
