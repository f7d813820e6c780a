"""Where traces go, by the variables that OpenTelemetry defines. `--otlp` sets the first of them.

OTEL_EXPORTER_OTLP_ENDPOINT          http://localhost:4318; `/v1/traces` is added
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT   the whole address, instead
OTEL_EXPORTER_OTLP_HEADERS           api-key=secret,other=value
OTEL_SERVICE_NAME                    busbar, if it is not set
OTEL_TRACES_SAMPLER_ARG              the part of the sampled traces that is exported, 0 to 1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from busbar.app.config import ConfigError
from busbar.gateway.trace_export import TraceExporter
from busbar.gateway.tracing import Tracer

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
SERVICE: Final = "OTEL_SERVICE_NAME"
RATIO: Final = "OTEL_TRACES_SAMPLER_ARG"


def make_tracer(environment: Mapping[str, str], process: str = "") -> Tracer | None:
    """The tracer of this process; None without an address. Raises ConfigError."""
    url = traces_url(environment)
    if not url:
        return None
    ratio = _ratio(environment.get(RATIO, ""))
    service = environment.get(SERVICE, "") or "busbar"
    exporter = TraceExporter(url, _headers(environment.get(HEADERS, "")), service, process)
    return Tracer(exporter.add, ratio, exporter.close)


def traces_url(environment: Mapping[str, str]) -> str:
    """The address that takes spans; empty if there is none. Raises ConfigError."""
    url = environment.get(TRACES_ENDPOINT, "")
    base = environment.get(ENDPOINT, "")
    if not url and base:
        url = f"{base.rstrip('/')}/v1/traces"
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ConfigError(
            f"The address for traces is {url!r}; it must begin with http:// or https:// and name a host."
        )
    return url


def _ratio(text: str) -> float:
    try:
        ratio = float(text or 1)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigError(f"{RATIO} is {text!r}; it must be a number from 0 to 1.")
    return ratio


def _headers(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if "=" in pair]
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
