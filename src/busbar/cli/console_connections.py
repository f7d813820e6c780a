"""The connections of clients, for the web console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from busbar.cli.console_client import management, moment
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.management_client import ManagementClient
from busbar.cli.stores import ask
from busbar.console.namespace import ConnectionsPage, ConnectionSummary, LinkSummary
from busbar.model.connection_views import MAX_SHOWN


class RunningConnections:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    def list(self, entity: str, sort: str, skip: int, limit: int) -> ConnectionsPage:
        with management(self._where) as client:
            report = _report(client, entity=entity, sort=sort, skip=min(skip, MAX_SHOWN - limit), top=limit)
        return ConnectionsPage(
            [_connection(view) for view in report["connections"]], report["total"], report["silent"]
        )

    def get(self, id: str) -> ConnectionSummary:
        with management(self._where) as client:
            for sort in ("rate", "since"):  # each order can be paged through to a limit
                report = _report(client, sort=sort, top=MAX_SHOWN)
                for view in report["connections"]:
                    if view["id"] == id:
                        return _connection(view)
            raise CommandFailure(f"the connection '{id}' does not exist any more.", ExitCode.NOT_FOUND)

    def close(self, id: str) -> None:
        with management(self._where) as client:
            client.expect("DELETE", f"$busbar/connections/{checked(id, 'connection')}", f"connection '{id}'")


def _report(client: ManagementClient, **query: str | int) -> dict[str, Any]:
    found: dict[str, Any] = ask(
        client, "GET", "connections", "the list of connections", "&" + urlencode(query)
    )
    return found


def _connection(view: Mapping[str, Any]) -> ConnectionSummary:
    return ConnectionSummary(
        view["id"],
        view["address"],
        view["product"] or view["container"],
        view["keyNames"],
        moment(view["since"]),
        view["rate"],
        view["unsettled"],
        view["credit"],
        view["linkCount"],
        [
            LinkSummary(
                link["role"],
                link["entity"],
                link["messages"],
                link["rate"],
                link["unsettled"],
                link["credit"],
            )
            for link in view["links"]
        ],
        view["broker"],
        view["tls"],
        view["websocket"],
        view["slow"],
    )
