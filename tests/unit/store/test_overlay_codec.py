"""The encoding of overlays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.model.message import Overlay
from busbar.store.overlay_codec import decode_overlay, encode_overlay

OVERLAYS = st.dictionaries(st.text(max_size=20), st.binary(max_size=40), max_size=5)


@given(OVERLAYS)
def test_an_overlay_comes_back_in_its_order(overlay: Overlay) -> None:
    decoded = decode_overlay(encode_overlay(overlay))
    assert decoded is not None
    assert list(decoded.items()) == list(overlay.items())


def test_no_overlay() -> None:
    assert encode_overlay(None) is None
    assert decode_overlay(None) is None


@given(st.binary(max_size=40))
def test_any_bytes_are_an_overlay_or_a_value_error(encoded: bytes) -> None:
    try:
        decode_overlay(encoded)
    except ValueError:
        pass


def test_a_cut_overlay_is_refused() -> None:
    encoded = encode_overlay({"name": b"value"})
    assert encoded is not None
    for end in range(1, len(encoded)):
        with pytest.raises(ValueError, match="not an overlay"):
            decode_overlay(encoded[:end])


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="65536 bytes"):
        encode_overlay({"n" * 65536: b""})
