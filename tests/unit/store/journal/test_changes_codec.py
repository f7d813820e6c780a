"""Group commits as bytes, and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.fragment.changes import OVERHEAD, Changes
from busbar.model.message import ACTIVE, Record
from busbar.store.journal.changes_decoder import JournalDamaged, decode_changes
from busbar.store.journal.changes_encoder import ChangesEncoder, encode_changes
from tests.unit.store.journal.examples import changes, plain


@settings(max_examples=40)
@given(st.lists(changes(), max_size=2))
def test_every_group_commit_comes_back(batches: list[Changes]) -> None:
    assert [plain(each) for each in decode_changes(encode_changes(batches))] == [
        plain(each) for each in batches
    ]


@settings(max_examples=60)
@given(st.lists(changes(), max_size=2), st.data())
def test_bytes_that_are_no_group_commit_are_named_as_damage(
    batches: list[Changes], data: st.DataObject
) -> None:
    body = bytearray(encode_changes(batches))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for mutated in (bytes(body), bytes(body[:cut])):
        try:
            decode_changes(mutated)
        except JournalDamaged:
            pass


def message(n: int, content: bytes) -> Record:
    return Record(n, 1, 0, 0, 0, OVERHEAD + len(content), content, None)


def test_the_copies_of_a_message_are_written_once() -> None:
    content = b"c" * 1_000
    batches = []
    for fragment in range(10):
        each = Changes(fragment)
        each.has_copies = True
        each.puts[ACTIVE] = [message(fragment + 1, content)]
        batches.append(each)
    body = encode_changes(batches)
    assert len(body) < 1_000 + 10 * 100
    decoded = decode_changes(body)
    assert [each.puts[ACTIVE][0].content for each in decoded] == [content] * 10
    assert len({id(each.puts[ACTIVE][0].content) for each in decoded}) == 1


def test_a_usual_message_costs_22_bytes_beside_its_content() -> None:
    one, two = Changes(1), Changes(1)
    one.puts[ACTIVE] = [message(1, b"a" * 100)]
    two.puts[ACTIVE] = [message(1, b"a" * 100), message(2, b"b" * 100)]
    assert len(encode_changes([two])) - len(encode_changes([one])) == 122


def test_a_shared_content_that_is_not_there_is_damage() -> None:
    one, two = Changes(1), Changes(2)
    content = b"c" * 100
    one.puts[ACTIVE] = [message(1, content)]
    two.puts[ACTIVE] = [message(1, content)]
    one.has_copies = two.has_copies = True
    body = bytearray(encode_changes([one, two]))
    body[-1] ^= 1  # the place of the content
    with pytest.raises(JournalDamaged, match="shares a content"):
        decode_changes(bytes(body))


def test_contents_that_are_no_copies_are_written_each() -> None:
    each = Changes(1)
    content = b"c" * 100
    each.puts[ACTIVE] = [message(1, content), message(2, content)]
    (decoded,) = decode_changes(encode_changes([each]))
    assert [record.content for record in decoded.puts[ACTIVE]] == [content, content]


def test_an_encoder_begins_each_record_anew() -> None:
    encoder = ChangesEncoder()
    batches = []
    for fragment in range(2):
        each = Changes(fragment)
        each.has_copies = True
        each.puts[ACTIVE] = [message(1, b"c" * 100), message(2, b"d" * 100)]
        batches.append(each)
    alone = encode_changes(batches)
    assert [encoder.encode(batches) for _ in range(3)] == [alone] * 3
