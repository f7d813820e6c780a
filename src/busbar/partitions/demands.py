"""The commands of one receiver to the fragments of its entity: grant credit, revoke credit, return messages.

1. Each fragment has a consumer number of the receiver, from its begin to its end.
2. `revoke` takes back all credit that a fragment has not used. The fragment gets no new credit before it has answered.
3. `refuse` returns messages that the client does not take. All messages that the fragment delivers until it has answered the
   revocation return, too: a later message must not overtake a returned one.
4. The delivery count of a returned message does not rise.
"""

from __future__ import annotations

from busbar.model.api import EntityView
from busbar.model.commands import RELEASE, Demand, Leave, Settle
from busbar.model.message import Record
from busbar.partitions.credit_allocation import CreditAllocator, FragmentCredit
from busbar.partitions.origin import Origin
from busbar.partitions.receive_cache import LockedBatch
from busbar.partitions.routing import indexes_by_store


def release_of(fragment: int, origin: int, records: list[Record], nonce: int) -> Settle:
    """The command that returns locked messages to their place, without a change of their delivery count."""
    numbers = [record.n for record in records]
    return Settle(fragment, origin, 0, RELEASE, numbers, [nonce] * len(numbers), None, False)


class FragmentDemands:
    __slots__ = ("_delete", "_origin", "_sub", "allocator", "credits")

    def __init__(self, origin: Origin, entity: EntityView, sub: int, delete: bool) -> None:
        """With `delete`, fragments delete messages as they deliver them."""
        fragments = entity.fragments
        partitioned = len(fragments) > 1
        self._origin = origin
        self._sub = sub
        self._delete = delete
        self.credits = [
            FragmentCredit(fragments[index], index, index if partitioned else -1)
            for index in indexes_by_store(entity)
        ]
        self.allocator = CreditAllocator(self.credits)

    def ask(self, credit: FragmentCredit, count: int, *, drain: bool = False) -> None:
        """Give the fragment credit for `count` more messages; with `drain`, only for those it has now."""
        if drain:
            credit.draining = True
        self._origin.command(
            Demand(
                credit.fragment, self._origin.origin, credit.consumer, self._sub, count, drain, self._delete
            )
        )

    def revoke(self, credit: FragmentCredit) -> None:
        credit.round = -1
        self.ask(credit, 0, drain=True)

    def revoke_all(self) -> None:
        for credit in self.credits:
            if credit.outstanding and not credit.draining:
                self.revoke(credit)

    def release(self, batch: LockedBatch) -> None:
        """Return messages to their place in the fragment, without a change of their delivery count."""
        if batch.records:
            self._origin.command(
                release_of(batch.demand.fragment, self._origin.origin, batch.records, batch.nonce)
            )

    def refuse(self, batch: LockedBatch) -> None:
        """Return messages, and all that their fragment delivers before it has answered."""
        credit = batch.demand
        credit.returning = True
        if not credit.draining:
            self.revoke(credit)
        self.release(batch)

    def leave(self) -> None:
        """End the consumers."""
        for credit in self.credits:
            self._origin.forget_consumer(credit.consumer)
            self._origin.command(Leave(credit.fragment, self._origin.origin, credit.consumer))
