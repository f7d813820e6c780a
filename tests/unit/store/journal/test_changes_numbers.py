"""The numbers of a commit's messages."""

from __future__ import annotations

from busbar.fragment.changes import Changes
from busbar.model.message import ACTIVE, DEAD, Record
from busbar.store.journal.changes_numbers import ABOVE_ALL, put_numbers


def test_the_lowest_and_the_highest_of_all_lanes() -> None:
    changes = Changes(1)
    changes.puts[ACTIVE] = [Record(n, 0, 0, 0, 0, 0, b"", None) for n in (7, 5, 9)]
    changes.puts[DEAD] = [Record(8, 0, 0, 0, 0, 0, b"", None)]
    assert put_numbers(changes) == (5, 9)


def test_without_messages() -> None:
    assert put_numbers(Changes(1)) == (ABOVE_ALL, 0)
