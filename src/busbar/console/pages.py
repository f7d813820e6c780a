"""Pages that are about no entity: failures and the sign-in."""

from __future__ import annotations

from busbar.console.access import SIGN_IN
from busbar.console.html import tag
from busbar.console.layout import HOME, notice, page


def failure_page(title: str, text: str, advice: str = "", *, place: str = "", live: bool = False) -> str:
    """The page of a failure, with what to do; with `live` it tries again automatically."""
    return page(
        title,
        notice(text, bad=True),
        tag("p", advice) if advice else None,
        tag("p", tag("a", "All entities", href="/")) if not live else None,
        place=place,
        live=live,
        trail=[HOME],
    )


def signed_in_page() -> str:
    return page("Signed in", tag("p", tag("a", "Go to the console", href="/")), onward="/", bare=True)


def signed_out_page(text: str) -> str:
    hint = (
        f"Open the address with {SIGN_IN}?token=… that `busbar console` printed. It works once; start the console anew "
        "for another."
    )
    return page("Not signed in", notice(text, bad=True), tag("p", hint), bare=True)
