"""Finds what is notable in the figures of an entity, in words.

What the records do not contain is a finding of its own. Nothing else is concluded from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from busbar.jobs.insight_figures import Backlog, Coverage, EntityFigures, Finding, iso

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
    coverage = figures.coverage
    found = _selection(coverage)
    if coverage.unavailable:
        found.append(
            Finding(
                f"{_fragments(coverage.unavailable)} could not be reached, because stores are unavailable: all figures are "
                f"those of the other {len(figures.fragments)}. Shares and the backlog are not judged.",
                grave=True,
            )
        )
    if any(each.lost or each.event_lost for each in coverage.fragments):
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
    found += _unknown(figures)
    if coverage.messages < ENOUGH:
        found.append(Finding(f"{coverage.messages} messages are few: rates and shares may mean little."))
    return found


def _selection(coverage: Coverage) -> list[Finding]:
    limits = [
        f"enqueued from {_second(coverage.since_time)}" if coverage.since_time is not None else "",
        f"enqueued before {_second(coverage.until_time)}" if coverage.until_time is not None else "",
        f"with {coverage.condition}" if coverage.condition else "",
    ]
    text = ", ".join(each for each in limits if each)
    if not text:
        return []
    judged = (
        " Shares are not judged, and rates and advice are those of this part." if coverage.condition else ""
    )
    return [Finding(f"The report is on messages {text}, and on their events.{judged}")]


def _unknown(figures: EntityFigures) -> list[Finding]:
    """The messages of which the records have no end, and of which none can be expected in them."""
    coverage, fates = figures.coverage, figures.fates
    found: list[Finding] = []
    if fates.unknown and (coverage.events is not None or fates.states is not None):
        text = f"When {fates.unknown:,} of {figures.sent.count:,} messages ended is not known: they came {_when(coverage)}."
        if fates.states is not None:
            text += f" When the tap was read, {_shown(fates.states)}."
        found.append(Finding(text))
    if coverage.missing:
        found.append(
            Finding(
                f"Among the messages from before the tap was made, {coverage.missing:,} numbers are missing: receivers had "
                "finished those messages, and nothing kept them. Rates are those since then, and shares are not judged."
            )
        )
    if figures.backlog is Backlog.CONTRADICTED and figures.counts is not None:
        records = max(fates.waiting, fates.held or 0)
        found.append(
            Finding(
                f"The records contradict the entity: by them {records:,} messages wait, and by its count "
                f"{figures.counts.waiting:,}. Ends of messages are missing in the records, so nothing is concluded about "
                "the backlog.",
                grave=True,
            )
        )
    return found


def _when(coverage: Coverage) -> str:
    """The time of messages whose outcome is not known."""
    if coverage.events is None:
        return "without a record of their outcomes"
    if coverage.known_time is None:
        return "while no outcome was recorded"
    since = _second(coverage.known_time)
    if coverage.began_time is None:
        return f"before the first recorded outcome ({since}), or after the last"
    return f"before outcomes were recorded ({since})"


def _second(time: int) -> str:
    return iso(time)[:19].replace("T", " ")


def _shown(states: Mapping[str, int]) -> str:
    """States in words: all that there are, the most frequent first."""
    ranked = sorted(states.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"{count:,} {_STATES.get(name, name)}" for name, count in ranked]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"of all messages {listed}"


_STATES = {
    "active": "were in the queue",
    "deferred": "were deferred",
    "dead-lettered": "were dead letters",
    "dead-lettered-deferred": "were deferred dead letters",
    "done": "were done",
}


def _fragments(indexes: Sequence[int]) -> str:
    if len(indexes) == 1:
        return f"Fragment {indexes[0]}"
    return f"Fragments {', '.join(map(str, indexes[:-1]))} and {indexes[-1]}"


def _skew(figures: EntityFigures) -> list[Finding]:
    found: list[Finding] = []
    if figures.sent.count < ENOUGH or not figures.coverage.is_whole:
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
    """Judges a backlog that is known: by the count, by what the tap shows, or by complete records."""
    sent, waiting = figures.sent.count, figures.waiting
    if waiting is None or waiting < ENOUGH or waiting < sent * 0.1:
        return []
    if figures.counts is None:
        return [
            Finding(
                f"About {waiting} of the {sent} messages were not done with at the end of the span: receivers do not "
                "keep up, or are away."
            )
        ]
    older = "" if waiting <= sent else f", {waiting - sent:,} of them from before the span"
    return [
        Finding(
            f"{waiting:,} messages were in the queue when the report was made{older}: receivers do not keep up, or are away."
        )
    ]
