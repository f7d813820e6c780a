"""Shows the progress of a job: a table on a terminal, otherwise a line for each batch. Both show what the job does now."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

COLUMNS: Final = ("Rows", "To go", "Rows/s", "Last batch", "Batch")
"""Beside the entity, in the order in which a narrow terminal gets them."""
LEAST_COLUMNS: Final = 1
REFRESH_SECONDS: Final = 0.25
ENTITY_WIDTH: Final = 16
"""To which the names of entities may shrink; longer ones take several lines."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch of a query that is durable, and that the broker may delete."""

    name: str
    """The entity; for streams other than messages, followed by the stream."""
    batch: int
    rows: int
    seconds: float
    total: int
    """Rows since the job started."""
    lag: int
    """Positions that were not read yet, at most; there may be fewer messages."""

    @property
    def rate(self) -> float:
        """Rows in a second, while the batch ran."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


class Display(Protocol):
    """Shows progress until it is closed."""

    def show(self, progress: BatchProgress) -> None: ...

    def notice(self, text: str) -> None:
        """What the job does now, before the first batch or instead of one."""

    def close(self) -> None: ...


def display_for(
    file: TextIO, clock: Callable[[], datetime] = lambda: datetime.now(UTC), *, table: bool = True
) -> Display:
    """A table on a terminal, unless other lines would cut through it; else lines."""
    return ProgressTable(file, clock) if table and file.isatty() else Lines(file, clock)


class Lines:
    """A line for each batch."""

    def __init__(self, file: TextIO, clock: Callable[[], datetime]) -> None:
        self._file = file
        self._clock = clock

    def show(self, progress: BatchProgress) -> None:
        self._file.write(
            f"{self._clock():%Y-%m-%dT%H:%M:%SZ} {progress.name}: batch {progress.batch}, {progress.rows:,} in "
            f"{progress.seconds:.1f} s ({progress.rate:,.0f}/s), {progress.lag:,} to go\n"
        )
        self._file.flush()

    def notice(self, text: str) -> None:
        self._file.write(f"{self._clock():%Y-%m-%dT%H:%M:%SZ} {text}\n")
        self._file.flush()

    def close(self) -> None:
        pass


class ProgressTable:
    """A table that is kept up to date. On a narrow terminal it leaves out columns.

    A thread draws it. Lines that the process prints to standard error meanwhile appear above the table. The two take turns
    with a lock, because a table of another height than the last one would otherwise be drawn over such a line.
    """

    def __init__(self, file: TextIO, clock: Callable[[], datetime]) -> None:
        from rich.live import Live

        self._rows: dict[str, tuple[BatchProgress, datetime]] = {}
        self._clock = clock
        self._notice = ""
        self._since = clock()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._live = Live(
            self,
            console=console_of(file),
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._file = file
        self._live.start()
        if sys.stderr is file:
            sys.stderr = _LinesAbove(self._print)
        threading.Thread(target=self._draw, name="busbar-table", daemon=True).start()

    def show(self, progress: BatchProgress) -> None:
        with self._lock:
            self._rows[progress.name] = (progress, self._clock())
            self._notice = ""

    def notice(self, text: str) -> None:
        with self._lock:
            self._notice, self._since = text, self._clock()

    def close(self) -> None:
        self._over.set()
        with self._lock:
            if isinstance(sys.stderr, _LinesAbove):
                sys.stderr.finish()
                sys.stderr = self._file
            self._notice = ""
            self._live.stop()

    def _draw(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            with self._lock:
                if not self._over.is_set():
                    fit(self._live.console, self._file)
                    self._live.refresh()

    def _print(self, line: str) -> None:
        with self._lock:
            self._live.console.print(line, markup=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, and below it what the job does now and since when."""
        from rich.text import Text

        if self._rows:
            yield self._fitting_table(console, options)
        if self._notice:
            seconds = (self._clock() - self._since).total_seconds()
            yield Text(f"{self._notice} … {seconds:.0f} s")

    def _fitting_table(self, console: Console, options: ConsoleOptions) -> Table:
        """The table with as many columns as fit beside each other."""
        from rich.measure import Measurement

        unlimited = options.update(max_width=10_000)  # otherwise no table needs more than there is
        count = len(COLUMNS)
        while count > LEAST_COLUMNS:
            least = Measurement.get(console, unlimited, self._table(count, ENTITY_WIDTH)).minimum
            if least <= options.max_width:
                break
            count -= 1
        return self._table(count)

    def _table(self, count: int, cut: int | None = None) -> Table:
        """A table with some of the columns. `cut` is the length at which names of entities are cut."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("Entity", overflow="fold")
        for column in COLUMNS[:count]:
            table.add_column(column, justify="right", no_wrap=True, min_width=len(column))
        for name, (progress, when) in sorted(self._rows.items()):
            cells = (
                f"{progress.total:,}",
                f"{progress.lag:,}",
                f"{progress.rate:,.0f}",
                f"{when:%H:%M:%S}",
                str(progress.batch),
            )
            table.add_row(Text(name[:cut]), *cells[:count])
        return table


class _LinesAbove(io.TextIOBase):
    """Standard error while a table is shown: whole lines, which go above it."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._print_line(line)
        return len(text)

    def finish(self) -> None:
        """Print what does not end with a line."""
        if self._rest:
            rest, self._rest = self._rest, ""
            self._print_line(rest)


def console_of(file: TextIO) -> Console:
    """A console that is as wide as the terminal of a file is now."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    fit(console, file)
    return console


def fit(console: Console, file: TextIO) -> None:
    """Make a console as wide as the terminal of its file, also when standard input and output are elsewhere. The variable
    COLUMNS sets another width."""
    from rich.console import ConsoleDimensions

    if "COLUMNS" in os.environ:
        return
    try:
        columns, lines = os.get_terminal_size(file.fileno())
    except (OSError, ValueError):
        return
    if columns and lines:
        console.size = ConsoleDimensions(columns, lines)
