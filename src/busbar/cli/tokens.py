"""Shared access signatures, as a client makes them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote, quote_plus


def sign(resource: str, key_name: str, key: str, expires: int) -> str:
    """The token for `resource` (an address, `sb://host/path`) that ends at `expires`, seconds since 1970."""
    encoded = quote_plus(resource)
    signed = hmac.new(key.encode(), f"{encoded}\n{expires}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(signed), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires}&skn={quote(key_name, safe='')}"
