"""Errors on their way to another process: they cross with their kind and their text, and are raised at the caller."""

from __future__ import annotations

import logging

import msgspec

from busbar.model.errors import BusbarError, InternalError, error_of
from busbar.store.contract import Fenced, OutcomeUnknown, StoreError, StoreFull, StoreInUse
from busbar.store.location import StoreMissing

_log = logging.getLogger(__name__)
_STORE_ERRORS = {
    kind.__name__: kind for kind in (StoreError, StoreFull, OutcomeUnknown, Fenced, StoreInUse, StoreMissing)
}


class ChannelClosed(Exception):
    """The channel ended, most likely with the other process; what it was asked for may or may not have taken place."""


class Failure(msgspec.Struct, array_like=True):
    kind: str
    """The class of a StoreError, or empty: a BusbarError with this condition."""
    condition: str
    text: str
    certain: bool


def encode_error(error: Exception) -> Failure:
    if isinstance(error, BusbarError):
        return Failure("", error.condition, error.text, error.certain)
    if isinstance(error, StoreError | OSError):
        kind = next((name for name, one in _STORE_ERRORS.items() if type(error) is one), StoreError.__name__)
        return Failure(kind, "", str(error) or type(error).__name__, True)
    if not isinstance(error, ChannelClosed):
        _log.error("a call of another process failed", exc_info=error)
    return Failure("", InternalError.condition, type(error).__name__, False)


def decode_error(failure: Failure) -> Exception:
    if failure.kind:
        return _STORE_ERRORS.get(failure.kind, StoreError)(failure.text)
    return error_of(failure.condition, failure.text, failure.certain)
