"""Finds what is notable in the figures of an entity, in words."""

from __future__ import annotations

from typing import Final

from busbar.jobs.insight_figures import EntityFigures, Finding

ENOUGH: Final = 100
"""The minimum number of messages for meaningful shares."""


def findings_of(figures: EntityFigures) -> list[Finding]:
    found = [
        *_coverage(figures),
        *_skew(figures),
        *_deliveries(figures),
        *_dead_letters(figures),
        *_backlog(figures),
    ]
    if figures.duplicates.count:
        found.append(
            Finding(
                f"{figures.duplicates.count} sends were dropped as duplicates: senders repeat themselves, after time-outs "
                "or restarts perhaps. Duplicate detection did what it is for."
            )
        )
    return found


def _coverage(figures: EntityFigures) -> list[Finding]:
    found: list[Finding] = []
    coverage = figures.coverage
    if not coverage.complete:
        found.append(
            Finding(
                "The tap reached its limits and was truncated: messages or events before the figures' span were lost. "
                "Read more often, or give the tap more age or size.",
                grave=True,
            )
        )
    if coverage.events is None:
        found.append(
            Finding(
                "What became of messages was not recorded, so there are no latencies, dead-letter reasons or duplicates: a "
                "tap needs events (busbar tap create --events), an archive too (busbar capture --events)."
            )
        )
    if coverage.messages < ENOUGH:
        found.append(Finding(f"{coverage.messages} messages are few: rates and shares may mean little."))
    return found


def _skew(figures: EntityFigures) -> list[Finding]:
    found: list[Finding] = []
    if figures.sent.count < ENOUGH:
        return found
    top_key = figures.keys.top[0] if figures.keys.top else None
    top_session = figures.sessions.top[0] if figures.sessions.top else None
    if figures.partitioned:
        fullest = max(figures.fragments, key=lambda each: each.sent)
        times = fullest.share * len(figures.fragments)
        if times >= 2:
            keys = [each for each in (top_key, top_session) if each is not None and each.share >= 0.1]
            blame = f" The key {keys[0].name!r} alone has {keys[0].share:.0%}." if keys else ""
            found.append(
                Finding(
                    f"Fragment {fullest.index} has {fullest.share:.0%} of the messages, {times:.1f} times an even share."
                    f"{blame} Messages of a key share a fragment: finer keys, or none, spread them.",
                    grave=times >= 4,
                )
            )
    if top_session is not None and figures.sessions.distinct > 1 and top_session.share >= 0.5:
        found.append(
            Finding(
                f"The session {top_session.name!r} has {top_session.share:.0%} of the messages: one receiver does "
                "them, one after another, whatever the others do.",
                grave=True,
            )
        )
    return found


def _deliveries(figures: EntityFigures) -> list[Finding]:
    found: list[Finding] = []
    expired = figures.outcomes.get("lock-expired", 0)
    done = figures.done.count
    if expired and expired >= max(1, done) * 0.01:
        found.append(
            Finding(
                f"{expired} locks ended before their messages were settled ({done} were completed): work was done twice. "
                "Prefetch less, renew locks, or raise LockDuration.",
                grave=True,
            )
        )
    if figures.redelivered and done and figures.redelivered >= done * 0.05:
        found.append(
            Finding(
                f"{figures.redelivered / done:.0%} of the completed messages had failed deliveries before."
            )
        )
    return found


_MEANING = {
    "MaxDeliveryCountExceeded": "receivers failed on them again and again",
    "TTLExpiredException": "they outlived their time to live before anybody took them",
    "HeaderSizeExceeded": "their headers are too large",
    "Session id is null.": "they lack the session id that the entity requires",
}


def _dead_letters(figures: EntityFigures) -> list[Finding]:
    letters = figures.dead_letters
    if not letters.count:
        return []
    first = letters.top[0]
    meaning = f": {_MEANING[first.name]}" if first.name in _MEANING else ""
    return [
        Finding(
            f"{letters.count} messages were dead-lettered, {first.share:.0%} of them as {first.name!r}{meaning}.",
            grave=letters.count >= max(1, figures.sent.count) * 0.01,
        )
    ]


def _backlog(figures: EntityFigures) -> list[Finding]:
    sent, done = figures.sent, figures.done
    if not sent.count or figures.coverage.events is None or done.count >= sent.count * 0.9:
        return []
    gone = sum(figures.outcomes.get(name, 0) for name in ("dead-lettered", "expired", "purged", "consumed"))
    waiting = sent.count - done.count - gone
    if waiting < ENOUGH or waiting < sent.count * 0.1:
        return []
    return [
        Finding(
            f"About {waiting} of the {sent.count} messages were not done with at the end of the span: receivers do not "
            "keep up, or are away."
        )
    ]
