"""A program that knows HTTP and a shared access key, nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from busbar.model.sas import sign

BATCH = "application/vnd.microsoft.servicebus.json"


def sas_token(resource: str, key: str, rule: str = "RootManageSharedAccessKey", life: int = 600) -> str:
    return sign(resource, rule, key, int(time.time()) + life)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def broker(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.headers["BrokerProperties"])
        return found

    @property
    def lock(self) -> str:
        """The path of the locked message, as the answer itself names it."""
        return urlsplit(self.headers["Location"]).path.lstrip("/")

    def error(self, status: int, sub_code: int = 0) -> str:
        """The text of the error that this answer has to be."""
        text = self.body.decode()
        assert self.status == status, text
        assert text.startswith(f"<Error><Code>{status}</Code><Detail>"), text
        if sub_code:
            assert f"SubCode={sub_code}. " in text, text
        return text


class Http:
    """One namespace; connections are kept alive and used again, as HTTP clients do."""

    def __init__(self, port: int, key: str) -> None:
        self.base = f"http://localhost:{port}"
        self.key = key
        self.opened = 0
        """Connections opened so far."""
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(self._count)
        self._session = aiohttp.ClientSession(
            trace_configs=[trace], timeout=aiohttp.ClientTimeout(total=20), auto_decompress=False
        )

    async def _count(self, *_about: object) -> None:
        self.opened += 1

    async def close(self) -> None:
        await self._session.close()

    def token(self, path: str = "", **options: Any) -> str:
        return sas_token(f"{self.base}/{path}", self.key, **options)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> Answer:
        given = dict(headers or {})
        given.setdefault("Authorization", self.token() if token is None else token)
        if not given["Authorization"]:
            del given["Authorization"]
        async with self._session.request(
            method,
            f"{self.base}/{path}",
            data=body,
            headers=given,
            skip_auto_headers=("Content-Type",),
        ) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    def raw(self, method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
        """The bytes of a request, for who writes them to a socket himself."""
        lines = [f"{method} /{path} HTTP/1.1", "Host: localhost", f"Authorization: {self.token()}", *headers]
        lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    async def send(self, entity: str, body: bytes = b"", broker: object = None, **headers: str) -> Answer:
        if broker is not None:
            headers["BrokerProperties"] = broker if isinstance(broker, str) else json.dumps(broker)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.request("POST", f"{entity}/messages", body, named)

    async def send_batch(self, entity: str, messages: object) -> Answer:
        document = messages if isinstance(messages, bytes) else json.dumps(messages).encode()
        return await self.request("POST", f"{entity}/messages", document, {"Content-Type": BATCH})

    async def peek_lock(self, entity: str, timeout: object = 5) -> Answer:
        return await self.request("POST", f"{entity}/messages/head?timeout={timeout}")

    async def take(self, entity: str, timeout: object = 5) -> Answer:
        """Receive and delete."""
        return await self.request("DELETE", f"{entity}/messages/head?timeout={timeout}")

    async def unlock(self, lock: str) -> Answer:
        return await self.request("PUT", lock)

    async def renew(self, lock: str) -> Answer:
        return await self.request("POST", lock)

    async def complete(self, lock: str) -> Answer:
        return await self.request("DELETE", lock)
