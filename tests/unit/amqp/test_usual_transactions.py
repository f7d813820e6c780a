"""The usual forms of what names a transaction are read without the general decoder, and mean the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.outcomes import (
    ACCEPTED,
    RELEASED,
    TRANSACTIONAL,
    binary_bytes,
    declared_state,
    empty_state,
    outcome_of,
    state_at,
    transactional_state,
)
from busbar.amqp.transactions import coordinator_request, discharge_message

IDS = st.binary(max_size=300)
INNER = st.sampled_from([b"", empty_state(ACCEPTED), empty_state(RELEASED), b"\x40"])


@given(IDS)
def test_a_binary_is_encoded_as_by_the_general_encoder(value: bytes) -> None:
    assert binary_bytes(value) == encode_value(value)
    assert outcome_of(decode_value(declared_state(value), 0, len(declared_state(value)), 99)[0]).txn == value


@given(IDS, INNER, st.binary(max_size=4))
def test_a_transactional_state_means_what_the_general_decoder_finds(
    txn: bytes, inner: bytes, behind: bytes
) -> None:
    state = transactional_state(txn, inner)
    found = state_at(state + behind, 0, len(state) + len(behind))
    general = outcome_of(decode_value(state, 0, len(state), 99)[0])
    assert found is not None
    assert (found.code, found.txn, found.error) == (general.code, general.txn, general.error)
    assert found.code == {empty_state(ACCEPTED): ACCEPTED, empty_state(RELEASED): RELEASED}.get(
        inner, TRANSACTIONAL
    )


@given(IDS, INNER, st.data())
def test_a_state_that_is_cut_or_changed_is_read_as_by_the_general_decoder(
    txn: bytes, inner: bytes, data: st.DataObject
) -> None:
    state = bytearray(transactional_state(txn, inner))
    at = data.draw(st.integers(3, len(state) - 1))
    state[at] = data.draw(st.integers(0, 255))
    changed = bytes(state[: data.draw(st.integers(4, len(state)))])
    assert _read(lambda: state_at(changed, 0, len(changed))) == _read(
        lambda: outcome_of(decode_value(changed, 0, len(changed), 99)[0])
    )


@pytest.mark.parametrize("fail", [True, False])
@given(IDS)
def test_a_discharge_is_read(fail: bool, txn: bytes) -> None:
    request = coordinator_request(discharge_message(txn, fail))
    assert (request.txn, request.fail) == (txn, fail)


def _read(read: object) -> object:
    assert callable(read)
    try:
        found = read()
    except Exception as error:
        return type(error)
    return (found.code, found.txn, found.failed, found.undeliverable)
