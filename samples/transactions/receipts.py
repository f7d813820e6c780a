"""Take orders from one queue and put a receipt for each into another, both or neither: a transaction with busbar.client.

Orders come on the queue `orders`, receipts go to the queue `replies`, which has sessions. The queue `orders` is the home of
the transaction: the receipt goes through it, in the commit that completes the order. One order makes the program fail in the
middle. Nothing of that transaction is done, and the order is worked on again.

Start a Busbar with `make run`, then

.venv/bin/python samples/transactions/receipts.py [CONNECTION_STRING]
"""

from __future__ import annotations

import asyncio
import sys

from busbar.client import MessagingFactory, OutgoingMessage, Received, Receiver, Sender, encode

CONNECTION = (
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
ORDERS, RECEIPTS = "orders", "replies"
CUSTOMERS = ("ann", "bob", "cleo")


class OutOfPaper(Exception):
    """What goes wrong in the middle of bob's order, once."""


async def work_on(
    factory: MessagingFactory, receiver: Receiver, receipts: Sender, order: Received, *, fails: bool
) -> None:
    """Complete an order and send its receipt."""
    customer = (order.decode().data or b"").decode()
    receipt = OutgoingMessage(f"receipt for {customer}".encode(), session_id=customer)
    async with factory.transaction(via=ORDERS) as tx:
        await receiver.complete([order], transaction=tx)
        await receipts.send([encode(receipt)], transaction=tx)
        if fails:
            raise OutOfPaper
    print(f"{customer}: done")


async def main() -> None:
    connection = sys.argv[1] if len(sys.argv) > 1 else CONNECTION
    async with await MessagingFactory.connect(connection) as factory:
        orders, receipts = await factory.sender(ORDERS), await factory.sender(RECEIPTS)
        await orders.send([encode(OutgoingMessage(customer.encode())) for customer in CUSTOMERS])
        receiver = await factory.receiver(ORDERS, credit=10)
        waiting: list[Received] = []
        while len(waiting) < len(CUSTOMERS):
            waiting += await receiver.receive(10)
        has_failed = False
        while waiting:
            order = waiting.pop(0)
            fails = not has_failed and order.decode().data == b"bob"
            try:
                await work_on(factory, receiver, receipts, order, fails=fails)
            except OutOfPaper:
                has_failed = True
                print("bob: rolled back")
                waiting.append(order)  # it is still locked


if __name__ == "__main__":
    asyncio.run(main())
