"""Scrapes the metrics of a running Busbar, and reads them as Prometheus does."""

from __future__ import annotations

import base64
import re
import urllib.error
import urllib.request

from harness.serving import Busbar

Samples = dict[str, float]
LINE = re.compile(r'([a-z_]+)(\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)*\})? (-?[0-9.e+-]+)')
HISTOGRAM = re.compile("(?<=_seconds)_(bucket|sum|count)$")
RULES = [
    {"Name": right, "Rights": [right], "PrimaryKey": f"to {right}", "SecondaryKey": "another"}
    for right in ("Listen", "Send")
]


def basic(name: str, key: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{key}".encode()).decode()


def get(server: Busbar, path: str, authorization: str) -> tuple[int, str, str]:
    """Status, a header that matters, and the body."""
    request = urllib.request.Request(f"http://localhost:{server.port}/{path}")
    if authorization:
        request.add_header("Authorization", authorization)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers["WWW-Authenticate"], refused.read().decode()


def scrape(server: Busbar, query: str = "") -> Samples:
    status, kind, text = get(server, f"metrics{query}", basic("Listen", "to Listen"))
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    samples: Samples = {}
    described = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, described, how = line.split()
            assert (how == "counter") == described.endswith("_total")
        elif not line.startswith("# HELP "):
            found = LINE.fullmatch(line)
            assert found is not None and HISTOGRAM.sub("", found[1]) == described, line
            assert samples.setdefault(f"{found[1]}{found[2] or ''}", float(found[3])) == float(found[3])
    assert text.endswith("\n")
    return samples
