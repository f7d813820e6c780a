"""The management API over HTTP, from the client's side: one connection, kept open, that a command makes its requests on.

Whatever goes wrong becomes a CommandFailure with what to do about it. Keys and tokens are in none of its texts.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator, Mapping
from urllib.parse import quote
from xml.etree.ElementTree import Element

from busbar.cli.atom_xml import AtomEntry, NotAtom, read_entry, read_error, read_feed, write_entry
from busbar.cli.endpoint import ManagementEndpoint, say_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.model.sas import sign

API_VERSION = "2021-05"
PAGE = 100
TOKEN_SECONDS = 300
TIMEOUT_SECONDS = 60.0
CONTENT_TYPE = "application/atom+xml;type=entry;charset=utf-8"


class HttpAnswer:
    """A response that was read to its end."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class ManagementClient:
    """A context manager with one connection. Before the first request that changes something it prints the namespace."""

    def __init__(self, target: ManagementEndpoint, *, says_target: bool = True) -> None:
        self._target = target
        self._has_said = not says_target
        self._connection = _connection(target)

    def __enter__(self) -> ManagementClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def say_target(self) -> None:
        """Print which namespace is the target, once. A command that asks a question calls this first."""
        if not self._has_said:
            self._has_said = True
            say_target(self._target)

    def get(self, path: str, what: str) -> AtomEntry:
        """The entry at `path`; `what` names it in errors ("queue 'orders'")."""
        answer = self.expect("GET", path, what)
        try:
            entry = read_entry(answer.body)
        except NotAtom as error:
            raise self._not_atom(error) from None
        if entry is None:
            raise CommandFailure(f"{what} does not exist.", ExitCode.NOT_FOUND)
        return entry

    def list(
        self, path: str, what: str, skip: int = 0, top: int | None = None, search: str = ""
    ) -> Iterator[AtomEntry]:
        """The entries of a list from `skip` on, at most `top`, asked for page by page; with `search`, those whose names
        contain it."""
        left = top
        named = f"&$search={quote(search, safe='')}" if search else ""
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            answer = self.expect("GET", path, what, query=f"&$skip={skip}&$top={size}{named}")
            try:
                entries = read_feed(answer.body)
            except NotAtom as error:
                raise self._not_atom(error) from None
            yield from entries[:size]
            if len(entries) < size:
                return
            skip += size
            left = None if left is None else left - size

    def create(self, path: str, description: Element, what: str) -> AtomEntry:
        return self._put(path, description, what, {})

    def update(self, path: str, description: Element, what: str) -> AtomEntry:
        return self._put(path, description, what, {"If-Match": "*"})

    def delete(self, path: str, what: str) -> None:
        self.expect("DELETE", path, what)

    def _put(self, path: str, description: Element, what: str, extra: Mapping[str, str]) -> AtomEntry:
        headers = {"Content-Type": CONTENT_TYPE, **extra}
        answer = self.expect("PUT", path, what, headers=headers, body=write_entry(description))
        try:
            entry = read_entry(answer.body)
        except NotAtom as error:
            raise self._not_atom(error) from None
        if entry is None:
            raise self._not_atom(NotAtom("it is a list"))
        return entry

    def expect(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> HttpAnswer:
        """Make a request and return the answer, if it is a success. Raises CommandFailure."""
        if method != "GET":
            self.say_target()
        answer = self._request(method, path, query, headers or {}, body)
        if answer.status < 300:
            return answer
        raise self._refusal(answer, what)

    def metrics(self) -> str:
        """The metrics of the namespace, as Prometheus gets them. Raises CommandFailure."""
        answer = self._request("GET", "metrics", None, {}, None)
        if answer.status >= 300:
            raise self._refusal(answer, "the metrics of the namespace")
        return answer.body.decode("utf-8", "replace")

    def _request(
        self, method: str, path: str, query: str | None, headers: Mapping[str, str], body: bytes | None
    ) -> HttpAnswer:
        """Make a request. Without a query it has no api-version, either."""
        given = "" if query is None else f"?api-version={API_VERSION}{query}"
        address = f"/{quote(path, safe='/$~')}{given}"
        sent = {"Authorization": self._token(), "Accept": "application/atom+xml, */*", **headers}
        if body is None and method in ("POST", "PUT"):
            body = b""
        try:
            self._connection.request(method, address, body, sent)
            response = self._connection.getresponse()
            return HttpAnswer(response.status, dict(response.headers), response.read())
        except ssl.SSLCertVerificationError as error:
            raise CommandFailure(
                f"the certificate of {self._target.address} is not trusted ({error.verify_message}); name its authority "
                "with --ca FILE or SSL_CERT_FILE (`busbar trust` shows that of a data directory)."
            ) from None
        except ssl.SSLError as error:
            raise CommandFailure(
                f"{self._target.address} does not speak TLS ({error.reason or error}); a connection string with "
                "UseDevelopmentEmulator=true is used without."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._nobody(error) from None

    def _token(self) -> str:
        target = self._target
        if target.token:
            return target.token
        resource = f"{target.address}/{target.entity_path}"
        return sign(resource, target.key_name, target.key, int(time.time()) + TOKEN_SECONDS)

    def _nobody(self, error: Exception) -> CommandFailure:
        if isinstance(error, http.client.HTTPException):
            reason = f"what does is not HTTP: {type(error).__name__}"
        elif isinstance(error, TimeoutError):
            reason = "timed out"
        else:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return CommandFailure(
            f"no Busbar answers at {self._target.address} ({reason}); {self._target.remedy}."
        )

    def _not_atom(self, error: NotAtom) -> CommandFailure:
        return CommandFailure(f"what answers at {self._target.address} is not a Busbar: {error}.")

    def _refusal(self, answer: HttpAnswer, what: str) -> CommandFailure:
        detail = read_error(answer.body) or http.client.responses.get(answer.status, "no reason given")
        if answer.status in (404, 410):
            return CommandFailure(f"{what} does not exist: {detail}", ExitCode.NOT_FOUND)
        if answer.status == 401:
            shown = f"the key '{self._target.key_name}'" if self._target.key else "the signature"
            return CommandFailure(
                f"{self._target.address} refused {shown}: {detail} Check the connection string.",
                ExitCode.REFUSED,
            )
        if (400 <= answer.status < 500 and answer.status not in (408, 429)) or answer.status == 501:
            return CommandFailure(f"{what} was refused: {detail}", ExitCode.REFUSED)
        return CommandFailure(f"the broker failed ({answer.status}): {detail}")


def _connection(target: ManagementEndpoint) -> http.client.HTTPConnection:
    if not target.tls:
        return http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_SECONDS)
    context = ssl.create_default_context()
    for authority in target.authorities:
        try:
            context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            raise CommandFailure(
                f"{authority} is not a certificate authority in PEM: {error}", ExitCode.USAGE
            ) from None
    return http.client.HTTPSConnection(target.host, target.port, timeout=TIMEOUT_SECONDS, context=context)
