"""Transactions for code that blocks."""

from __future__ import annotations

from busbar.client.blocking_loop import LoopThread
from busbar.client.transactions import ClientTransaction


class BlockingTransaction:
    """ClientTransaction, without await."""

    def __init__(self, thread: LoopThread, transaction: ClientTransaction) -> None:
        self._thread = thread
        self.transaction = transaction

    @property
    def is_open(self) -> bool:
        return self.transaction.is_open

    def begin(self) -> None:
        self._thread.run(self.transaction.begin())

    def commit(self) -> None:
        self._thread.run(self.transaction.commit())

    def rollback(self) -> None:
        self._thread.run(self.transaction.rollback())

    def __enter__(self) -> BlockingTransaction:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        self._thread.run(self.transaction.__aexit__(kind))


def awaited(transaction: BlockingTransaction | None) -> ClientTransaction | None:
    return None if transaction is None else transaction.transaction
