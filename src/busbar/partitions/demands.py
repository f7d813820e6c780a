"""The commands of one receiver to the fragments of its entity: give, stop giving, take back.

1. Each fragment has a consumer number of the receiver, from its begin to its end.
2. `revoke` takes back all credit that a fragment has not used. It gets no new credit before it has answered.
3. `refuse` returns messages that nobody takes. All that the fragment delivers until it has answered the revocation returns,
   too: a later message must not overtake one that goes back.
4. A message that returns has never left: its delivery count stays.
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
    """The command by which locked messages return to their place, as if they had never left."""
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
        """Give the fragment credit for so many messages more; with `drain`, only for what it has now."""
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
        """Return messages to their place in the fragment, as if they had never left."""
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
