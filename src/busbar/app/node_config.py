"""What `busbar serve --node` asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from busbar.app.config import ConfigError
from busbar.app.store_places import WantedStores
from busbar.cluster.hello import PROTOCOL_VERSIONS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_ADDRESS = re.compile(r"[A-Za-z0-9._-]{1,253}|\[?[0-9A-Fa-f:.]{2,45}\]?")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What `--node` and the options beside it ask for."""

    name: str
    catalogue: str
    """The address of the database in which nodes meet."""
    host: str
    port: int
    """Of the node port; brokers have the ports behind it. 0: any free ports."""
    brokers: int
    stores: WantedStores
    address: str = ""
    """The name or address by which other nodes reach this one, if it is not that of the host."""
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    level: int = 0
    """The highest version of the channels between nodes that it offers; 0: the highest that it has."""

    @property
    def versions(self) -> list[int]:
        """The versions of the channels between nodes that it offers."""
        return [version for version in PROTOCOL_VERSIONS if not self.level or version <= self.level]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"--node takes a name of at most 63 letters, digits, - and _, not {self.name!r}."
            )
        if self.address and not _ADDRESS.fullmatch(self.address):
            raise ConfigError(
                f"--node-address takes a host name or an address without a port, not {self.address!r}."
            )
        if not self.catalogue:
            raise ConfigError("--node needs --catalogue: the database in which the nodes of a cluster meet.")
        if self.stores.files:
            raise ConfigError(
                "The stores of a cluster are PostgreSQL databases: --stores takes addresses, and no number, with --node."
            )
        if not self.versions or self.level > max(PROTOCOL_VERSIONS):
            known = " and ".join(str(version) for version in sorted(PROTOCOL_VERSIONS))
            raise ConfigError(f"--node-level is {self.level}; this release has the levels {known}.")
        given = (self.certificate, self.key, self.authority)
        if any(given) and not all(given):
            raise ConfigError("--node-cert, --node-key and --node-ca belong together; give all, or none.")
