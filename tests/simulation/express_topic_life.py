"""The life of an express topic: what its subscriptions get, one of which requires sessions."""

from __future__ import annotations

from random import Random

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import Draft
from busbar.model.settings import FragmentSettings
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings
from tests.simulation.express_book import ExpressBook, tag_of
from tests.simulation.express_life import BESIDE, DELAY, LOCK
from tests.simulation.express_session_life import ExpressSessionLife
from tests.simulation.topic_checker import Kind, content
from tests.simulation.topic_life import RULES

TOPIC = 10
FIRST = 11
"""The fragment of the first subscription. They have the rules of topic_life.py, in their order."""


class ExpressTopicLife(ExpressSessionLife):
    """What was acknowledged is in all subscriptions that select it, and what was refused in none. After a crash, each
    subscription has what was written there."""

    topic = TOPIC

    def __init__(self, seed: int) -> None:
        self.kinds_of: dict[int, Kind] = {}
        self.unknown: list[tuple[list[int], int]] = []
        """Sends whose outcome is not known: their tags, and how many crashes there had been."""
        self.topic_numbers: set[int] = set()
        super().__init__(seed)

    def make_books(self) -> list[ExpressBook]:
        return [ExpressBook(FIRST + index, index == 1) for index in range(self.random.choice([2, 3, 4]))]

    @property
    def subscriptions(self) -> list[ExpressBook]:
        return [book for book in self.books.values() if book.fragment != BESIDE]

    def _settings(self) -> dict[int, FragmentSettings]:
        found = super()._settings()
        fragments = tuple(book.fragment for book in self.subscriptions)
        rules = TopicRules(tuple(RuleSet((("rule", rule),), True) for rule, _ in RULES[: len(fragments)]))
        express = DELAY if self.is_express else 0
        found[TOPIC] = FragmentSettings(
            LOCK, 1_000, 0, False, 0, True, True, topic=TopicSettings(0, fragments, rules), express_ms=express
        )
        return found

    # ---- senders ----

    def _draft(self, r: Random, forced: bool) -> Draft:
        tag = next(self.tags)
        kind = self.kinds_of[tag] = Kind(r.choice(["red", "blue", "green"]), r.randint(1, 8))
        due = self.world.now + r.randint(1, 300) if r.random() < 0.04 else 0
        return Draft(content(tag, kind, r.choice([0, 50])), "", r.choice("abc"), None, 0, due, forced=forced)

    def _selecting(self, tag: int) -> list[ExpressBook]:
        pairs = zip(self.subscriptions, RULES, strict=False)
        return [book for book, (_, selects) in pairs if selects(self.kinds_of[tag])]

    def _expect_copies(self, drafts: list[Draft], is_durable: bool) -> list[int]:
        """A topic may pass a message on in a later turn, so each may wait there."""
        tags = [tag_of(draft.content) for draft in drafts]
        for tag, draft in zip(tags, drafts, strict=True):
            for book in self._selecting(tag):
                due = int(draft.scheduled)
                book.expect(
                    tag, is_durable=is_durable, session=draft.session_id, scheduled=due, may_wait=True
                )
        return tags

    def _copies_answered(self, tags: list[int], crashes: int, effect: e.Effect | None) -> None:
        for tag in tags:
            for book in self._selecting(tag):
                self._send_answered(book, [tag], effect)
        if isinstance(effect, e.Refused) and not effect.certain:
            self.unknown.append((tags, crashes))

    def send(self) -> None:
        forced = self.random.random() < 0.1
        drafts = self._drafts(forced)
        tags = self._expect_copies(drafts, forced)
        changes, crashes, express = self.changes, self.world.crashes, self.is_express

        def answered(effect: e.Effect | None) -> None:
            self._copies_answered(tags, crashes, effect)
            if isinstance(effect, e.Sent):
                assert not self.topic_numbers & set(effect.numbers), "a number was given twice"
                self.topic_numbers |= set(effect.numbers)
                if changes == self.changes and not express:
                    for tag in tags:
                        for book in self._selecting(tag):
                            book.told[tag].is_durable = True

        atomic = self.random.random() < 0.5
        self.world.ask(lambda request: c.Send(TOPIC, 1, request, drafts, atomic), answered)

    def send_beside(self) -> None:
        book = self.books[BESIDE]
        draft = Draft(b"tag-%06d" % next(self.tags), "", None, None, 0, 0)
        tags = self._expect(book, [draft], True)
        self.world.ask(
            lambda request: c.Send(BESIDE, 1, request, [draft], True),
            lambda effect: self._send_answered(book, tags, effect),
        )

    def transact(self) -> None:
        """Send to the topic, and complete a message of a subscription."""
        drafts = self._drafts(False)
        tags = self._expect_copies(drafts, True)
        of = self.random.choice(self.subscriptions)
        some = self._held(of)[:1]
        settle, settled = self._settlement(of, some, c.COMPLETE)
        crashes = self.world.crashes

        def answered(effect: e.Effect | None) -> None:
            self._copies_answered(tags, crashes, effect)
            settled(effect)

        self._ask_transaction(TOPIC, drafts, [settle(0)] if some else [], answered)

    # ---- the end ----

    def end(self) -> None:
        super().end()
        for tags, crashes in self.unknown:
            if crashes == self.world.crashes and not self.may_delete:
                for tag in tags:
                    came = {book.told[tag].has_come for book in self._selecting(tag)}
                    assert len(came) < 2, f"{tag} is in some subscriptions that select it, and not in others"
