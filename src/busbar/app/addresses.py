"""The addresses at which this machine is reached."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket


def is_loopback(host: str) -> bool:
    """Whether only clients of this machine can reach a listener on it."""
    if host.lower() == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def machine_name() -> str:
    """The name of this machine, if it can stand in a certificate."""
    name = socket.gethostname()
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,251}[A-Za-z0-9]|[A-Za-z0-9]", name) else ""


def is_everywhere(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")


def local_address(host: str) -> str:
    """The host as a client of this machine writes it in an address."""
    if is_everywhere(host):
        return "localhost"
    return f"[{host}]" if ":" in host else host


def address_for_others(host: str) -> str:
    """The address for clients on other machines. If all addresses are listened on, it is the one from which this machine
    reaches others, as far as that is known."""
    if not is_everywhere(host):
        return local_address(host)
    # Connecting a datagram socket sends nothing; it chooses the address of the way there. These are for documentation.
    ways = [(socket.AF_INET, "192.0.2.1")] + ([(socket.AF_INET6, "2001:db8::1")] if host == "::" else [])
    for family, elsewhere in ways:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            found = str(probe.getsockname()[0])
            if not ipaddress.ip_address(found).is_unspecified:
                return local_address(found)
    return "localhost"
