"""Busbar: a message broker with queues and topics that Azure SDKs can use."""

from __future__ import annotations

import os
from importlib.util import find_spec

__version__ = "0.1.0"

if os.environ.get("BUSBAR_INTERPRETED") == "1":
    from busbar import _interpreted

    _interpreted.install()


def compiled() -> bool:
    """Whether the rooms that mypyc compiles (setup.py) are loaded from extension modules in this process."""
    spec = find_spec("busbar.model.message")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
