"""The endpoint file of a running instance, kept true while the keys of the namespace change.

Commands on the same machine manage the namespace with the key of the file. So when that key is renewed, or its rule deleted,
the file gets one that is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from busbar.app.endpoint_file import RunningEndpoint, remove_endpoint, write_endpoint
from busbar.app.namespace_rules import managing_rule
from busbar.catalogue.reading import CatalogueReader
from busbar.model.api import EntityView
from busbar.model.entities import AuthorizationRule, authorization_rules_of
from busbar.model.names import NAMESPACE_ENTRY


class PublishedEndpoint:
    def __init__(self, directory: Path, endpoint: RunningEndpoint, announce: Callable[[str], None]) -> None:
        """Write the file. Without it the namespace is served all the same: clients with a connection string do not need
        it."""
        self._directory = directory
        self._preferred = endpoint.key_name
        self._endpoint = endpoint
        self._announce = announce
        self._write()

    @property
    def key_name(self) -> str:
        return self._endpoint.key_name

    @property
    def key(self) -> str:
        return self._endpoint.key

    def watch(self, catalogue: CatalogueReader) -> Callable[[], None]:
        """Use the rules of the namespace, now and after each change of them. The result ends that."""

        def changed(path: str, view: EntityView | None) -> None:
            if path == NAMESPACE_ENTRY and view is not None:
                self.use(authorization_rules_of(view.description))

        self.use(catalogue.authorization_rules(""))
        return catalogue.watch(changed)

    def use(self, rules: Sequence[AuthorizationRule]) -> None:
        """Use one of these rules from now on."""
        rule = managing_rule(rules, self._preferred)
        if rule is not None and (rule.name, rule.primary_key) != (self.key_name, self.key):
            self._endpoint = replace(self._endpoint, key_name=rule.name, key=rule.primary_key)
            self._write()

    def remove(self) -> None:
        remove_endpoint(self._directory)

    def _write(self) -> None:
        try:
            write_endpoint(self._directory, self._endpoint)
        except OSError as error:
            self._announce(
                f"warning: commands need --connection-string: {self._directory} cannot be written: {error}"
            )
