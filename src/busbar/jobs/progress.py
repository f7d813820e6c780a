"""Shows the progress of a job: a table on a terminal, otherwise a line for each batch. Both show what the job does now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table


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
    """A table that is kept up to date."""

    def __init__(self, file: TextIO, clock: Callable[[], datetime]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rows: dict[str, tuple[BatchProgress, datetime]] = {}
        self._clock = clock
        self._notice = ""
        self._since = clock()
        self._live: Live = Live(
            get_renderable=self._shown, console=Console(file=file, highlight=False), refresh_per_second=4
        )
        self._live.start()

    def show(self, progress: BatchProgress) -> None:
        self._rows[progress.name] = (progress, self._clock())
        self._notice = ""

    def notice(self, text: str) -> None:
        self._notice, self._since = text, self._clock()

    def close(self) -> None:
        self._notice = ""
        self._live.stop()

    def _shown(self) -> RenderableType:
        """The table, and below it what the job does now and since when."""
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [self._table()] if self._rows else []
        if self._notice:
            seconds = (self._clock() - self._since).total_seconds()
            parts.append(Text(f"{self._notice} … {seconds:.0f} s"))
        return Group(*parts)

    def _table(self) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("Entity", overflow="fold")
        for column in ("Rows", "Rows/s", "To go", "Batch", "Last batch"):
            table.add_column(column, justify="right")
        for name, (progress, when) in sorted(self._rows.items()):
            table.add_row(
                Text(name),
                f"{progress.total:,}",
                f"{progress.rate:,.0f}",
                f"{progress.lag:,}",
                str(progress.batch),
                f"{when:%H:%M:%S}",
            )
        return table
