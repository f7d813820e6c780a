"""Purging: which messages, a confirmation by typing the name, and progress."""

from __future__ import annotations

from collections.abc import Collection

from busbar.console.form_parts import check_box, confirmation_page, group, line
from busbar.console.html import tag
from busbar.console.layout import count, counted, notice, page, path_of, tiles, trail_below
from busbar.console.message_pages import LANES
from busbar.console.messages import Lane
from busbar.console.namespace import Address, Entity
from busbar.console.purging import PurgeRun

TYPED_NAME = "typed"
USUAL = (Lane.ACTIVE,)
RENEWED_MS = 500


def purge_page(
    entity: Entity,
    *,
    lanes: Collection[Lane] = USUAL,
    session: str = "",
    csrf: str,
    place: str,
    refusal: str = "",
) -> str:
    address = entity.address
    boxes = [check_box(f"lane-{lane}", label, "", lane in lanes) for lane, label in LANES.items()]
    return confirmation_page(
        f"Purge {address.name}?",
        "All messages of the selected kinds that are there now are deleted. Messages that a receiver has locked stay. "
        "This cannot be undone.",
        group("Which messages", boxes),
        line("session", "Only of this session", "Empty: all messages.", session),
        line(
            TYPED_NAME,
            f"Type the name of the {address.kind} to confirm",
            address.name,
            "",
            required=True,
        ),
        action=path_of(address, "purge"),
        csrf=csrf,
        submit="Delete the messages",
        keep=("Keep them", path_of(address, "messages")),
        place=place,
        trail=trail_below(address),
        refusal=refusal,
    )


def progress_page(address: Address, run: PurgeRun, *, place: str) -> str:
    """How far a purge is. The page is renewed until it is over."""
    deleted = sum(run.deleted.values())
    ended = f"{counted(deleted, 'message')} {'was' if deleted == 1 else 'were'} deleted."
    if run.left:
        ended += f" {count(run.left)} could not be: they are locked by others, or gone."
    return page(
        f"Purge of {address.name}",
        notice(run.failure, bad=True) if run.failure else None,
        notice(ended) if run.is_over and not run.failure else None,
        None if run.is_over else tag("p", "The messages are being deleted.", role="status"),
        tiles([(count(number), LANES[lane].lower()) for lane, number in run.deleted.items()]),
        tag("p", tag("a", "To the messages", href=path_of(address, "messages"))),
        place=place,
        live=False if run.is_over else RENEWED_MS,
        trail=trail_below(address),
    )
