"""Reads schemas from a schema registry over HTTP: Confluent's API, which others offer too, and that of Azure.

A registry never changes a schema that has an id. So each process keeps the schemas that it has read.

- A schema that the registry does not have is an UnknownSchema: the body that names its id is bad. A process asks again for
  the same id after UNKNOWN_SECONDS at the earliest.
- If the registry does not answer, refuses the credentials, or answers with what is no schema, the read fails. It is not
  the body that is bad then. So a "not found" counts only if it has the form of a registry's: a wrong URL has another.

A request is repeated within the time limit if the registry cannot be reached, or is busy (429, 5xx). Redirects are refused,
so credentials reach only the registry that the option names.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from email.message import Message
from typing import IO, Any, Final
from urllib.parse import quote, urlsplit

from busbar.spark.errors import OptionError, SourceError
from busbar.spark.secrets import read_first_line, read_variable

CONFLUENT: Final = "confluent"
AZURE: Final = "azure"
LATEST: Final = "latest"
AZURE_API: Final = "2022-10"

CREDENTIALS: Final = "schemaRegistryCredentials"
CREDENTIALS_VARIABLE: Final = "schemaRegistryCredentialsEnv"
CREDENTIALS_FILE: Final = "schemaRegistryCredentialsFile"

MAX_BYTES: Final = 4 * 1024 * 1024
MAX_REFERENCES: Final = 100
MAX_UNKNOWN: Final = 10_000
UNKNOWN_SECONDS: Final = 10.0
ATTEMPT_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.5


class UnknownSchema(LookupError):
    """The registry does not have the schema."""


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Where a registry is, and how to reach it. Printing one does not show the credentials."""

    url: str
    kind: str = CONFLUENT
    variable: str = ""
    file: str = ""
    literal: str = field(default="", repr=False)
    trust: str = ""
    timeout: float = 30.0
    """The maximum time for one schema, with repetitions, in seconds."""

    def authorization(self) -> str:
        """The Authorization header; empty for none. Raises OptionError."""
        if self.variable:
            text = read_variable(CREDENTIALS_VARIABLE, self.variable)
        elif self.file:
            text = read_first_line(CREDENTIALS_FILE, self.file)
        else:
            text = self.literal.strip()
        if not text or text.lower().startswith(("bearer ", "basic ")):
            return text
        return "Basic " + base64.b64encode(text.encode()).decode("ascii")


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of the registry, with those that it refers to, each before its first use."""

    text: str
    kind: str
    """AVRO, PROTOBUF or JSON."""
    references: tuple[tuple[str, str], ...] = ()
    """Names and texts of other schemas."""


class SchemaRegistry:
    """Reads one registry, and keeps what it has read."""

    def __init__(self, options: RegistryOptions) -> None:
        self.options = options
        self._known: dict[str, RegisteredSchema] = {}
        self._unknown: dict[str, float] = {}
        self._opener: urllib.request.OpenerDirector | None = None

    def by_id(self, schema_id: str, *, serialized: bool = False) -> RegisteredSchema:
        """The schema with an id. Raises UnknownSchema, SourceError."""
        known = self._known.get(schema_id)
        if known is not None:
            return known
        if time.monotonic() < self._unknown.get(schema_id, 0.0):
            raise UnknownSchema(f"the registry has no schema with the id {schema_id}")
        path = (
            f"/schemas/ids/{quote(schema_id, safe='')}{_format(serialized)}"
            if self.options.kind == CONFLUENT
            else f"/$schemaGroups/$schemas/{quote(schema_id, safe='')}?api-version={AZURE_API}"
        )
        try:
            found = self._schema(path, serialized)
        except UnknownSchema:
            if len(self._unknown) >= MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown[schema_id] = time.monotonic() + UNKNOWN_SECONDS
            raise UnknownSchema(f"the registry has no schema with the id {schema_id}") from None
        self._known[schema_id] = found
        return found

    def by_subject(self, subject: str, version: str, *, serialized: bool = False) -> RegisteredSchema:
        """A version of a subject: a number, or the latest. Raises OptionError, SourceError."""
        try:
            if self.options.kind == CONFLUENT:
                return self._schema(
                    f"{_versions(subject)}/{quote(version, safe='')}{_format(serialized)}", serialized
                )
            return self._schema(self._azure_version(subject, version), serialized)
        except UnknownSchema:
            raise OptionError(
                "schemaSubject",
                f"is {subject!r}, of which {self.options.url} has no version {version!r}.",
            ) from None

    def _azure_version(self, subject: str, version: str) -> str:
        """The path of a version of a schema, which is named by its group and its name."""
        group, slash, name = subject.partition("/")
        if not slash or not name:
            raise OptionError("schemaSubject", f"is {subject!r}; in Azure it is 'group/name'.")
        base = f"/$schemaGroups/{quote(group, safe='')}/schemas/{quote(name, safe='')}/versions"
        if version == LATEST:
            answer = self._json(f"{base}?api-version={AZURE_API}")
            listed = {key.lower(): value for key, value in answer.items()} if isinstance(answer, dict) else {}
            numbers = listed.get("value", listed.get("schemaversions"))
            if not isinstance(numbers, list) or not numbers:
                raise self._failure("answered with what is no list of versions")
            version = str(max(int(number) for number in numbers))
        return f"{base}/{quote(version, safe='')}?api-version={AZURE_API}"

    def _schema(self, path: str, serialized: bool) -> RegisteredSchema:
        if self.options.kind == AZURE:
            content, headers = self._get(path)
            kind = "JSON" if "serialization=json" in headers.get("Content-Type", "").lower() else "AVRO"
            return RegisteredSchema(content.decode("utf-8", "replace"), kind)
        answer = self._json(path)
        references: dict[str, str] = {}
        self._refer(answer, serialized, references, [])
        return RegisteredSchema(
            self._text(answer), str(answer.get("schemaType", "AVRO")), tuple(references.items())
        )

    def _refer(self, answer: Any, serialized: bool, found: dict[str, str], path: list[str]) -> None:
        """Add the schemas that one refers to, with theirs before them."""
        for each in answer.get("references") or ():
            name, subject, version = str(each["name"]), str(each["subject"]), str(each["version"])
            if name in found:
                continue
            if name in path or len(found) >= MAX_REFERENCES:
                raise self._failure(f"answered with a schema whose references do not end ({name!r})")
            other = self._json(f"{_versions(subject)}/{quote(version, safe='')}{_format(serialized)}")
            self._refer(other, serialized, found, [*path, name])
            found[name] = self._text(other)

    def _text(self, answer: Any) -> str:
        text = answer.get("schema") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise self._failure("answered with what is no schema")
        return text

    # ---- requests --------------------------------------------------------------------------------

    def _json(self, path: str) -> Any:
        content, _ = self._get(path)
        try:
            return json.loads(content)
        except ValueError:
            raise self._failure("answered with what is no JSON") from None

    def _get(self, path: str) -> tuple[bytes, Message]:
        """The answer to a request, repeated within the time limit. Raises UnknownSchema, SourceError."""
        deadline = time.monotonic() + self.options.timeout
        pause = PAUSE_SECONDS
        while True:
            try:
                return self._attempt(path, max(0.1, min(ATTEMPT_SECONDS, deadline - time.monotonic())))
            except _Unreachable as error:
                if time.monotonic() + pause >= deadline:
                    raise self._failure(
                        f"did not answer for {self.options.timeout:g} s (option 'schemaRegistryTimeout'): {error}"
                    ) from None
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _attempt(self, path: str, timeout: float) -> tuple[bytes, Message]:
        accept = "application/vnd.schemaregistry.v1+json, application/json, */*"
        headers = {"Accept": accept, "User-Agent": "busbar-spark"}
        authorization = self.options.authorization()
        if authorization:
            headers["Authorization"] = authorization
        request = urllib.request.Request(self.options.url + path, headers=headers)
        try:
            with self._open(request, timeout) as answer:
                content: bytes = answer.read(MAX_BYTES + 1)
                if len(content) > MAX_BYTES:
                    raise self._failure(f"answered with more than {MAX_BYTES} bytes")
                return content, answer.headers
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, error.read(2_000)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise self._failure(
                    f"has a certificate that is not trusted: {reason.verify_message}"
                ) from None
            raise _Unreachable(str(reason or error) or type(error).__name__) from None

    def _open(self, request: urllib.request.Request, timeout: float) -> Any:
        if self._opener is None:
            context = ssl.create_default_context(cafile=self.options.trust or None)
            self._opener = urllib.request.build_opener(
                _NoRedirects(), urllib.request.HTTPSHandler(context=context)
            )
        return self._opener.open(request, timeout=timeout)

    def _refused(self, status: int, content: bytes) -> Exception:
        reason = _reason(content)
        if status == 404 and _is_of_registry(content):
            return UnknownSchema(reason)
        if status in (401, 403):
            return self._failure(
                f"refused the credentials ({status}): {reason} The option {CREDENTIALS_VARIABLE!r} names them"
            )
        if status == 429 or status >= 500:
            return _Unreachable(f"{status}: {reason}")
        return self._failure(f"answered with {status}: {reason}")

    def _failure(self, what: str) -> SourceError:
        return SourceError("BUSBAR_SCHEMA_REGISTRY", f"The schema registry {self.options.url} {what}.")


class _Unreachable(Exception):
    """A failure that may pass."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


_registries: dict[tuple[int, RegistryOptions], SchemaRegistry] = {}


def registry_of_process(options: RegistryOptions) -> SchemaRegistry:
    """The registry with what this process has read of it."""
    key = (os.getpid(), options)
    found = _registries.get(key)
    if found is None:
        found = _registries[key] = SchemaRegistry(options)
    return found


def check_url(url: str) -> str:
    """The URL of a registry without a slash at its end. Raises OptionError, which does not repeat credentials."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            "schemaRegistry",
            f"has credentials in its URL; they belong to the option {CREDENTIALS_VARIABLE!r}.",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise OptionError(
            "schemaRegistry", f"is {url!r}; it is a URL such as 'https://registry.example:8081'."
        )
    return url.rstrip("/")


def is_of_azure(url: str) -> bool:
    """Whether a URL is that of a namespace in Azure, whose registry has an API of its own."""
    return (urlsplit(url).hostname or "").endswith(".servicebus.windows.net")


def _versions(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions"


def _format(serialized: bool) -> str:
    """Protobuf schemas are read as descriptors: nothing here reads the text of a .proto file."""
    return "?format=serialized" if serialized else ""


def _is_of_registry(content: bytes) -> bool:
    """Whether an error is one that a registry answers with: with a code of its own."""
    try:
        answer = json.loads(content)
        return "error_code" in answer or "code" in answer["error"]
    except (ValueError, KeyError, TypeError):
        return False


def _reason(content: bytes) -> str:
    text = content.decode("utf-8", "replace").strip()
    try:
        answer = json.loads(text)
        message = answer.get("message") or answer["error"]["message"]
        return str(message)[:500]
    except (ValueError, KeyError, TypeError, AttributeError):
        return " ".join(text.split())[:200]
