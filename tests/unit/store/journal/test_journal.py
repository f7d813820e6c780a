"""A journal that is closed, cut, damaged and used again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from busbar.store.contract import OutcomeUnknown
from busbar.store.journal.changes_decoder import JournalDamaged
from busbar.store.journal.journal import SegmentedJournal
from busbar.store.journal.segment import HEADER_SIZE, RECORD_SIZE, Segment
from busbar.store.journal.segment_names import segments_of
from busbar.store.sqlite.journal_state import JournalState

JOURNAL = b"j" * 16
SIZE = HEADER_SIZE + 4_096
ON_DISK = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def opened(
    directory: Path, applied: int = 0, epoch: int = 1, id: bytes = JOURNAL
) -> tuple[SegmentedJournal, list[bytes]]:
    """The journal after recovery, and what its records hold. It is begun if there is none."""
    journal = SegmentedJournal(directory, SIZE)
    is_new = not segments_of(directory)
    found = [record.body for record in journal.recover(JournalState(id, applied, is_closed=is_new), epoch)]
    if is_new:
        journal.begin(id)
    return journal, found


def written(directory: Path, bodies: list[bytes]) -> None:
    journal, _ = opened(directory)
    for body in bodies:
        journal.append(body)
    journal.close()


def test_records_come_back_in_their_order_over_many_segments(tmp_path: Path) -> None:
    bodies = [b"%d" % n + bytes(n * 7) for n in range(200)]
    written(tmp_path / "j", bodies)
    assert len(segments_of(tmp_path / "j")) > 2
    journal, found = opened(tmp_path / "j", epoch=2)
    assert found == bodies
    assert journal.append(b"next") == 201
    journal.close()
    assert opened(tmp_path / "j", epoch=3)[1] == [*bodies, b"next"]


def test_what_is_applied_is_not_read_and_its_segments_are_used_again(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path / "j")
    for n in range(500):
        assert journal.append(bytes(100)) == n + 1
        journal.free(n - 5)
    journal.close()
    assert len(segments_of(tmp_path / "j")) <= 3
    assert len(opened(tmp_path / "j", applied=495, epoch=2)[1]) == 5


def test_a_record_larger_than_a_segment_has_one_of_its_size(tmp_path: Path) -> None:
    bodies = [b"small", bytes(3 * SIZE), b"after"]
    written(tmp_path / "j", bodies)
    assert opened(tmp_path / "j")[1] == bodies


@pytest.mark.parametrize("is_closed", [False, True])
def test_segments_of_another_file_are_refused_and_left_as_they_are(tmp_path: Path, is_closed: bool) -> None:
    written(tmp_path / "j", [b"one"])
    with pytest.raises(JournalDamaged, match="belongs to another file than j"):
        SegmentedJournal(tmp_path / "j", SIZE).recover(JournalState(b"t" * 16, 0, is_closed), 1)
    assert opened(tmp_path / "j")[1] == [b"one"]


def test_segments_that_a_closed_file_has_no_need_of_are_deleted(tmp_path: Path) -> None:
    written(tmp_path / "j", [b"one"])
    journal = SegmentedJournal(tmp_path / "j", SIZE)
    assert list(journal.recover(JournalState(JOURNAL, 1, is_closed=True), 2)) == []
    assert segments_of(tmp_path / "j") == []


def test_a_journal_that_was_begun_and_never_used_is_deleted(tmp_path: Path) -> None:
    written(tmp_path / "j", [])
    assert segments_of(tmp_path / "j")
    journal = SegmentedJournal(tmp_path / "j", SIZE)
    assert list(journal.recover(JournalState(bytes(16), 0, is_closed=True), 2)) == []
    assert segments_of(tmp_path / "j") == []


def test_a_journal_that_is_missing_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(
        JournalDamaged, match=r"was not closed cleanly, and its journal is missing: put the files j\.\*"
    ):
        SegmentedJournal(tmp_path / "j", SIZE).recover(JournalState(JOURNAL, 7, is_closed=False), 2)


def test_segments_of_a_replaced_file_are_not_those_of_the_current_one(tmp_path: Path) -> None:
    written(tmp_path / "j.replaced-17", [b"one"])
    assert segments_of(tmp_path / "j") == []
    assert len(segments_of(tmp_path / "j.replaced-17")) == 1


def test_records_that_are_missing_before_the_first_one_are_noticed(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path / "j")
    for _ in range(100):
        journal.append(bytes(200))
    journal.free(80)
    journal.close()
    with pytest.raises(JournalDamaged):
        opened(tmp_path / "j", applied=3, epoch=2)


def test_a_segment_that_is_missing_between_others_is_noticed(tmp_path: Path) -> None:
    written(tmp_path / "j", [bytes(500)] * 40)
    segments_of(tmp_path / "j")[1].unlink()
    with pytest.raises(JournalDamaged):
        opened(tmp_path / "j")


def test_a_replaced_segment_is_not_written_to_silently(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path / "j")
    journal.append(b"one")
    file = segments_of(tmp_path / "j")[0]
    shutil.copy(file, tmp_path / "copy")
    os.replace(tmp_path / "copy", file)
    with pytest.raises(OutcomeUnknown, match="replaced"):
        journal.append(b"two")
    with pytest.raises(OutcomeUnknown):
        journal.append(b"three")


BODIES = st.lists(st.binary(max_size=900), min_size=1, max_size=25)


@ON_DISK
@given(bodies=BODIES, data=st.data())
def test_a_torn_last_record_is_left_out_and_never_comes_back(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("torn") / "j"
    written(directory, bodies)
    last, start, length = _last_record(directory)
    whole = last.read_bytes()
    kept = data.draw(st.integers(0, length - 1))
    rest = data.draw(st.sampled_from([b"\0", b"\xff", b"x"])) * (length - kept)
    assume(whole[start + kept : start + length] != rest)  # otherwise it is not torn
    last.write_bytes(whole[: start + kept] + rest + whole[start + length :])
    journal, found = opened(directory, epoch=2)
    assert found == bodies[:-1]
    journal.append(b"other")
    journal.close()
    last.write_bytes(whole)  # the torn record becomes complete after all
    assert opened(directory, epoch=3)[1] == [*bodies[:-1], b"other"]


@pytest.mark.parametrize("record", [1, 2, 3, 4])
@pytest.mark.parametrize("offset", [0, 4, 7, 15, RECORD_SIZE - 1, RECORD_SIZE, RECORD_SIZE + 9])
def test_a_record_that_cannot_be_read_before_others_is_damage(
    tmp_path: Path, record: int, offset: int
) -> None:
    """Wherever the bit is: magic, length, sequence, checksum, content. Only the last record may have been torn."""
    bodies = [b"%d" % n * 10 for n in range(5)]
    written(tmp_path / "j", bodies)
    (file,) = segments_of(tmp_path / "j")
    content = bytearray(file.read_bytes())
    content[HEADER_SIZE + record * (RECORD_SIZE + 10) + offset] ^= 1
    file.write_bytes(content)
    if record == 4:
        assert opened(tmp_path / "j", epoch=2)[1] == bodies[:-1]
    else:
        with pytest.raises(JournalDamaged):
            opened(tmp_path / "j", epoch=2)


@ON_DISK
@given(bodies=BODIES, data=st.data())
def test_a_flipped_bit_is_damage_or_hits_the_last_record(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("flip") / "j"
    written(directory, bodies)
    file = data.draw(st.sampled_from(segments_of(directory)))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    try:
        _, found = opened(directory, epoch=2)
    except JournalDamaged:
        found = bodies
    assert found in (bodies, bodies[:-1])


def _last_record(directory: Path) -> tuple[Path, int, int]:
    """The file of the last record, its place and its length with its head."""
    records = {}
    for path in segments_of(directory):
        segment = Segment.open(path)
        if segment.header is not None:
            for record in segment.read():
                records[record.sequence] = (path, record.start, RECORD_SIZE + len(record.body))
        segment.close()
    return records[max(records)]
