"""Changes of the catalogue as values: what is planned, what follows from it, and that nothing is in force by planning."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from busbar.catalogue.change import CatalogueChange
from busbar.catalogue.fragment_settings import FragmentSettingsBuilder
from busbar.catalogue.index import EntityIndex
from busbar.catalogue.planning import ChangePlanner, IdCounters
from busbar.catalogue.staged_index import StagedIndex
from busbar.model.api import EntityView
from busbar.model.entities import (
    EntityKind,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    Tier,
    TopicDescription,
)
from busbar.model.errors import EntityAlreadyExists, EntityNotFound, QuotaExceeded, ServerBusy
from busbar.model.limits import Limits
from busbar.model.taps import TapChange, TapDescription

STORES = ["store-0", "store-1", "store-2", "store-3"]
QUEUE = QueueDescription()
PARTITIONED = QueueDescription(enable_partitioning=True)


class Planning:
    """The entries that are in force, and plans over them."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.entries = EntityIndex()
        self.ids = IdCounters()
        self.unavailable: set[str] = set()
        self.settings = FragmentSettingsBuilder()
        self._limits = limits or Limits()

    def new(self, now: int = 1) -> ChangePlanner:
        return ChangePlanner(
            self.entries, self._limits, Tier.STANDARD, self.ids, STORES, self.unavailable, now
        )

    def put_in_force(self, plan: ChangePlanner) -> CatalogueChange:
        change = plan.change
        self.settings.adopt(self.settings.plan(change, plan.entries))
        for view in change.gone:
            self.entries.remove(view.path)
        for view in change.after:
            self.entries.put(view)
        return change


def paths(views: Iterable[EntityView]) -> list[str]:
    return [view.path for view in views]


def test_operations_of_a_plan_see_each_other_and_nothing_is_in_force() -> None:
    here = Planning()
    plan = here.new()
    plan.create("t", TopicDescription())
    plan.create("T/Subscriptions/s", SubscriptionDescription())
    plan.create("t/subscriptions/S/Rules/blue", RuleDescription(SqlFilter("colour = 'blue'")))
    with pytest.raises(EntityAlreadyExists):
        plan.create("T", QUEUE)
    assert len(here.entries) == 0
    change = plan.change
    assert change.before == () and paths(change.after) == [
        "t",
        "t/Subscriptions/s",
        "t/Subscriptions/s/Rules/$Default",
        "t/Subscriptions/s/Rules/blue",
    ]
    assert {*change.new_fragments} == {1, 2} and change.deleted_fragments == {}
    assert plan.find("t").stores == plan.find("t/Subscriptions/s").stores
    assert change.rows()["last-fragment"] == b"2"


def test_an_operation_that_is_refused_leaves_the_plan_as_it_was() -> None:
    here = Planning(Limits(max_entities=1))
    plan = here.new()
    plan.create("a", PARTITIONED)
    before = plan.change
    with pytest.raises(QuotaExceeded):
        plan.create("b", QUEUE)
    here.unavailable.add("store-2")
    with pytest.raises(ServerBusy, match="store-2"):
        plan.create_tap("a", TapDescription("tap"))
    assert plan.change == before


def test_only_what_begins_in_a_store_needs_it() -> None:
    here = Planning()
    plan = here.new()
    plan.create("p", PARTITIONED)
    plan.create("t", TopicDescription(enable_partitioning=True))
    here.put_in_force(plan)
    here.unavailable.add("store-2")
    plan = here.new()
    for refused in (
        lambda: plan.create("new", PARTITIONED),
        lambda: plan.create("t/Subscriptions/s", SubscriptionDescription()),
        lambda: plan.create_tap("p", TapDescription("tap")),
    ):
        with pytest.raises(ServerBusy, match="store-2 is unavailable, which has to hold a part of it"):
            refused()
    assert plan.change.rows() == {}
    regular = [plan.create(f"r{number}", QUEUE).stores for number in range(40)]
    assert {store for (store,) in regular} == {"store-0", "store-1", "store-3"}
    plan.update("p", QueueDescription(enable_partitioning=True, max_delivery_count=3))
    plan.delete("t")
    here.unavailable.update(STORES)
    with pytest.raises(ServerBusy):
        plan.create("nowhere", QUEUE)


def test_a_deletion_names_all_that_goes_and_its_inverse_brings_it_back() -> None:
    here = Planning()
    plan = here.new()
    plan.create("t", TopicDescription())
    plan.create("t/Subscriptions/s", SubscriptionDescription())
    plan.create("q", QUEUE)
    here.put_in_force(plan)
    plan = here.new()
    plan.delete("T")
    with pytest.raises(EntityNotFound):
        plan.find("t/Subscriptions/s")
    change = plan.change
    assert paths(change.gone) == ["t", "t/Subscriptions/s", "t/Subscriptions/s/Rules/$Default"]
    assert {*change.deleted_fragments} == {1, 2}
    rows = change.rows()
    assert [name for name, value in rows.items() if value is None] == [
        "entity/t",
        "entity/t/subscriptions/s",
        "entity/t/subscriptions/s/rules/$default",
    ]
    assert {"emptying/1", "emptying/2"} <= rows.keys()
    assert change.entities == [(view.path, None) for view in change.gone]
    inverse = change.inverse
    assert inverse.entities == [(view.path, view) for view in change.gone]
    assert inverse.new_fragments == change.deleted_fragments and inverse.inverse.after == change.after


def test_what_is_created_and_deleted_in_one_plan_is_no_change() -> None:
    here = Planning()
    plan = here.new()
    plan.create("q", QUEUE)
    plan.delete("q")
    assert plan.change.entities == []
    here.put_in_force(plan)
    plan = here.new()
    (again,) = plan.create("q", QUEUE).fragments
    assert again == 2, "an id is given once"


def test_an_update_replaces_its_entry_and_a_tap_that_stays_the_same_nothing() -> None:
    here = Planning()
    plan = here.new()
    plan.create("q", QUEUE)
    plan.create_tap("q", TapDescription("tap", owner="me"))
    here.put_in_force(plan)
    plan = here.new(now=9)
    plan.change_tap("q", "tap", False, TapChange(owner="me"))
    assert plan.change.rows() == {}
    plan.update("Q", QueueDescription(max_delivery_count=3))
    change = plan.change
    assert paths(change.before) == paths(change.after) == ["q"] and change.gone == []
    assert (change.before[0].updated, change.after[0].updated) == (1, 9)
    assert change.new_fragments == change.deleted_fragments == {}
    settings = here.settings.plan(change, plan.entries).update
    (store,) = change.after[0].stores
    assert settings.new == {} and [*settings.changed[store]] == [*change.after[0].fragments]


def test_a_topic_gets_other_settings_with_its_subscriptions_and_keeps_the_rules_that_did_not_change() -> None:
    here = Planning()
    plan = here.new()
    topic = plan.create("t", TopicDescription())
    first = plan.create("t/Subscriptions/a", SubscriptionDescription())
    made = here.settings.plan(plan.change, plan.entries).update
    (store,) = topic.stores
    assert made.changed == {} and {*made.new[store]} == {*topic.fragments, *first.fragments}
    here.put_in_force(plan)

    plan = here.new()
    second = plan.create("t/Subscriptions/b", SubscriptionDescription())
    never = here.settings.plan(plan.change, plan.entries).update.changed[store][topic.fragments[0]].topic
    back = here.settings.plan(plan.change.inverse, here.entries).update
    assert never is not None and never.fragments == (*first.fragments, *second.fragments)
    (restored,) = back.changed[store].values()
    assert restored.topic is not None and restored.topic.fragments == first.fragments
    assert back.new == {}, "what is taken back is purged, not created"
    here.put_in_force(plan)

    plan = here.new()
    plan.create("t/Subscriptions/b/Rules/r", RuleDescription(SqlFilter("a = 1")))
    update = here.settings.plan(plan.change, plan.entries).update
    now = update.changed[store][topic.fragments[0]].topic
    assert now is not None
    assert now.rules.subscriptions[0] is here.settings._topics["t"]["t/subscriptions/a"][1]  # type: ignore[index]
    assert [name for name, _ in now.rules.subscriptions[1].rules] == ["$Default", "r"]
    here.put_in_force(plan)

    plan = here.new()
    plan.delete("t/Subscriptions/a")
    plan.delete("t/Subscriptions/b")
    update = here.settings.plan(plan.change, plan.entries).update
    (none,) = update.changed[store].values()
    assert none.topic is not None and none.topic.fragments == ()


def test_staged_entries_are_counted_and_ordered_with_those_in_force() -> None:
    index = EntityIndex()
    for name in ("a", "c"):
        index.put(EntityView(name, PARTITIONED, ()))
    staged = StagedIndex(index)
    staged.put(EntityView("B", QUEUE, ()))
    staged.put(EntityView("C", QUEUE, ()))
    staged.remove("A")
    assert paths(staged.children(EntityKind.QUEUE, "")) == ["B", "C"]
    assert staged.count(EntityKind.QUEUE) == 2 and staged.partitioned == 0
    assert staged.get("a") is None and staged.get("c") == EntityView("C", QUEUE, ())
    assert paths(index.children(EntityKind.QUEUE, "")) == ["a", "c"] and index.partitioned == 2


def test_a_subscription_is_express_as_its_topic_is() -> None:
    here = Planning()
    plan = here.new()
    plan.create("t", TopicDescription(enable_express=True))
    plan.create("t/Subscriptions/s", SubscriptionDescription())
    plan.create("q", QueueDescription(enable_express=True))
    plan.create("plain", QUEUE)
    settings = here.settings.plan(plan.change, plan.entries).update.new
    delays = {of.path: of.express_ms for fragments in settings.values() for of in fragments.values()}
    assert delays == {"t": 5_000, "t/Subscriptions/s": 5_000, "q": 5_000, "plain": 0}
    here.put_in_force(plan)
    plan = here.new()
    plan.update("t", TopicDescription())
    changed = here.settings.plan(plan.change, plan.entries).update.changed
    delays = {of.path: of.express_ms for fragments in changed.values() for of in fragments.values()}
    assert delays == {"t": 0, "t/Subscriptions/s": 0}
    plan = here.new()
    plan.update("t", TopicDescription(enable_express=True, user_metadata="other"))
    changed = here.settings.plan(plan.change, plan.entries).update.changed
    assert [of.path for fragments in changed.values() for of in fragments.values()] == ["t"]
