"""Draws a live table on its terminal, with figures that grow, and ends.

python -m tests.unit.jobs.terminal_table
"""

from __future__ import annotations

import logging
import sys
import time

from busbar.jobs.progress import BatchProgress, display_for

NAMES = ("orders", "shop/invoices/Subscriptions/audit", "orders/$deadletterqueue")

if __name__ == "__main__":
    display = display_for(sys.stderr)
    display.notice("starting Spark")
    time.sleep(0.3)
    for batch in range(3):
        for number, name in enumerate(NAMES):
            rows = 400_000 * (number + 1) + batch
            display.show(BatchProgress(name, batch, rows, 2.5, rows * (batch + 1), 7_000_000 * (2 - batch)))
        logging.getLogger("busbar.jobs").warning("The tap %r could not be advanced.", f"tap {batch}")
        display.notice("waiting for the broker at 127.0.0.1:5672 for up to 5m")
        time.sleep(0.3)
    display.close()
    print("done")
