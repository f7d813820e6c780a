"""A schema registry over HTTP, for tests: the parts of Confluent's API and of Azure's that clients of either use.

It keeps schemas in memory, numbers them, and counts the requests that it answers. A test can make it refuse, hang or fail.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

JSON_TYPE = "application/vnd.schemaregistry.v1+json"
Reference = Mapping[str, object]


@dataclass
class StoredSchema:
    id: int
    text: str
    kind: str
    references: list[Reference]

    def document(self, serialized: bool) -> dict[str, object]:
        """As Confluent's API returns it. Protobuf schemas are kept as descriptors in base64, as it accepts them."""
        found: dict[str, object] = {"schema": self.text}
        if self.kind == "PROTOBUF" and not serialized:
            found["schema"] = 'syntax = "proto3";'
        if self.kind != "AVRO":
            found["schemaType"] = self.kind
        if self.references:
            found["references"] = self.references
        return found


@dataclass
class SchemaRegistryServer:
    """A registry on the loopback interface."""

    authorization: str = ""
    """The Authorization header that requests need."""
    requests: list[str] = field(default_factory=list)
    """The paths of all requests."""
    fails: int = 0
    """The number of requests that are answered with 503 before others are served."""
    delay: float = 0.0
    redirect: str = ""
    """Where all requests are redirected to."""
    url: str = ""
    by_id: dict[int, StoredSchema] = field(default_factory=dict)
    subjects: dict[str, list[StoredSchema]] = field(default_factory=dict)
    azure: dict[str, str] = field(default_factory=dict)
    azure_names: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: Sequence[Reference] = ()
    ) -> int:
        """Add a version to a subject, and return the id of the schema."""
        stored = StoredSchema(len(self.by_id) + 1, text, kind, list(references))
        self.by_id[stored.id] = stored
        self.subjects.setdefault(subject, []).append(stored)
        return stored.id

    def register_azure(self, group: str, name: str, text: str) -> str:
        """Add a version to a schema of a group, and return its id."""
        found = uuid4().hex
        self.azure[found] = text
        self.azure_names.setdefault((group, name), []).append(found)
        return found

    # ---- answers ---------------------------------------------------------------------------------

    def answer(self, path: str, authorization: str) -> tuple[int, Mapping[str, str], bytes]:
        """The answer to a GET: status, headers, content."""
        self.requests.append(path)
        time.sleep(self.delay)
        if self.redirect:
            return 302, {"Location": self.redirect + path}, b""
        if self.fails > 0:
            self.fails -= 1
            return self._error(503, 50302, "The registry is busy")
        if self.authorization and authorization != self.authorization:
            return self._error(401, 401, "Unauthorized")
        parts = urlsplit(path)
        for pattern, serve in self._routes():
            found = re.fullmatch(pattern, parts.path)
            if found is not None:
                return serve(*map(unquote, found.groups()), query=parse_qs(parts.query))
        return 404, {"Content-Type": "text/html"}, b"<html>HTTP 404 Not Found</html>"

    def _routes(self) -> list[tuple[str, Callable[..., tuple[int, Mapping[str, str], bytes]]]]:
        return [
            (r"/schemas/ids/([^/]+)", self._schema),
            (r"/subjects/([^/]+)/versions/([^/]+)", self._version),
            (r"/\$schemaGroups/\$schemas/([^/]+)", self._azure_schema),
            (r"/\$schemaGroups/([^/]+)/schemas/([^/]+)/versions", self._azure_versions),
            (r"/\$schemaGroups/([^/]+)/schemas/([^/]+)/versions/(\d+)", self._azure_version),
        ]

    def _schema(self, schema_id: str, *, query: Any) -> tuple[int, Mapping[str, str], bytes]:
        stored = self.by_id.get(int(schema_id)) if schema_id.isdigit() else None
        if stored is None:
            return self._error(404, 40403, f"Schema {schema_id} not found")
        return self._json(200, stored.document(query.get("format") == ["serialized"]))

    def _version(self, subject: str, version: str, *, query: Any) -> tuple[int, Mapping[str, str], bytes]:
        versions = self.subjects.get(subject)
        if versions is None:
            return self._error(404, 40401, f"Subject '{subject}' not found.")
        number = len(versions) if version == "latest" else int(version)
        if not 0 < number <= len(versions):
            return self._error(404, 40402, f"Version {version} not found.")
        stored = versions[number - 1]
        found = stored.document(query.get("format") == ["serialized"])
        return self._json(200, {"subject": subject, "version": number, "id": stored.id, **found})

    def _azure_schema(self, schema_id: str, *, query: Any) -> tuple[int, Mapping[str, str], bytes]:
        text = self.azure.get(schema_id)
        if text is None or "api-version" not in query:
            return self._azure_missing(f"Schema id {schema_id} does not exist.")
        headers = {"Content-Type": "application/json; serialization=Avro", "Schema-Id": schema_id}
        return 200, headers, text.encode()

    def _azure_versions(self, group: str, name: str, *, query: Any) -> tuple[int, Mapping[str, str], bytes]:
        versions = self.azure_names.get((group, name))
        if versions is None:
            return self._azure_missing(f"Schema {name} does not exist.")
        return self._json(200, {"Value": list(range(1, len(versions) + 1))})

    def _azure_version(
        self, group: str, name: str, version: str, *, query: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        versions = self.azure_names.get((group, name), [])
        if not 0 < int(version) <= len(versions):
            return self._azure_missing(f"Version {version} does not exist.")
        return self._azure_schema(versions[int(version) - 1], query=query)

    def _azure_missing(self, message: str) -> tuple[int, Mapping[str, str], bytes]:
        return self._json(404, {"error": {"code": "ItemNotFound", "message": message}})

    def _error(self, status: int, code: int, message: str) -> tuple[int, Mapping[str, str], bytes]:
        return self._json(status, {"error_code": code, "message": message})

    def _json(self, status: int, document: object) -> tuple[int, Mapping[str, str], bytes]:
        return status, {"Content-Type": JSON_TYPE}, json.dumps(document).encode()


@contextmanager
def serving_schemas(
    authorization: str = "", context: ssl.SSLContext | None = None
) -> Iterator[SchemaRegistryServer]:
    """A registry that serves until the end of the block, with a context over TLS."""
    registry = SchemaRegistryServer(authorization)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, content = registry.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    registry.url = f"{'https' if context else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def basic(user: str, password: str) -> str:
    """The Authorization header of a user."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
