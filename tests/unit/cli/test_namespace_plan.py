"""What a plan has for entities that are there, that are not, and that the file does not have."""

from __future__ import annotations

from busbar.cli.namespace_plan import NamespacePlan, plan
from busbar.model.entities import (
    AuthorizationRule,
    Description,
    QueueDescription,
    Right,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)

QUEUE, TOPIC, SUBSCRIPTION = QueueDescription(), TopicDescription(), SubscriptionDescription()
DEFAULT = ("t/Subscriptions/s/Rules/$Default", RuleDescription())
SERVED: list[tuple[str, Description]] = [
    ("q", QUEUE),
    ("t", TOPIC),
    ("t/Subscriptions/s", SUBSCRIPTION),
    DEFAULT,
]


def actions(found: NamespacePlan) -> list[tuple[str, str]]:
    return [(step.action, step.path) for step in found.changing]


def test_the_same_is_no_change() -> None:
    found = plan(SERVED, SERVED, prune=True)
    assert found.changing == [] and len(found.steps) == 4 and found.impossible == []


def test_changes_have_old_and_new_values() -> None:
    (step,) = plan([("Q", QueueDescription(lock_duration=5_000))], SERVED, prune=False).changing
    (change,) = step.changes
    assert (step.action, change.property, change.old, change.new) == (
        "change",
        "LockDuration",
        "PT1M",
        "PT5S",
    )


def test_what_is_not_in_the_file_stays_unless_it_is_pruned() -> None:
    assert actions(plan([("q", QUEUE)], SERVED, prune=False)) == []
    assert actions(plan([("q", QUEUE)], SERVED, prune=True)) == [("delete", "t")], "with all that is below it"


def test_a_target_of_a_forward_comes_first() -> None:
    wanted: list[tuple[str, Description]] = [("a", QueueDescription(forward_to="z")), ("z", QUEUE)]
    assert actions(plan(wanted, [], prune=False)) == [("create", "z"), ("create", "a")]


def test_a_fixed_property_makes_a_plan_impossible() -> None:
    found = plan([("q", QueueDescription(requires_session=True))], SERVED, prune=False)
    assert found.impossible == [
        "'q': RequiresSession is fixed at creation (False -> True); delete the entity first"
    ]
    assert "another kind" in plan([("q", TOPIC)], SERVED, prune=False).impossible[0]


def test_rules_are_pruned_only_if_the_file_has_some() -> None:
    named: list[tuple[str, Description]] = [("t", TOPIC), ("t/Subscriptions/s", SUBSCRIPTION)]
    assert actions(plan(named, SERVED, prune=True)) == [("delete", "q")]
    rule = ("t/Subscriptions/s/Rules/r", RuleDescription(SqlFilter("a=1")))
    assert actions(plan([*named, rule], SERVED, prune=True)) == [
        ("create", rule[0]),
        ("delete", "q"),
        ("delete", DEFAULT[0]),
    ]


def test_a_filter_for_everything_is_the_same_in_both_forms() -> None:
    rule = (DEFAULT[0], RuleDescription(SqlFilter("1=1")))
    assert plan([rule], [(DEFAULT[0], RuleDescription(TrueFilter()))], prune=False).changing == []


def test_authorization_rules_are_compared_by_rights() -> None:
    def with_rules(*rules: tuple[str, set[Right]]) -> QueueDescription:
        return QueueDescription(
            authorization_rules=tuple(
                AuthorizationRule(name, frozenset(rights), "", "") for name, rights in rules
            )
        )

    there = [("q", with_rules(("old", {Right.SEND}), ("same", {Right.LISTEN})))]
    wanted = [("q", with_rules(("same", {Right.LISTEN}), ("new", {Right.MANAGE}), ("old", {Right.LISTEN})))]
    found = [(step.action, step.access, [*step.rights]) for step in plan(wanted, there, prune=True).changing]
    assert found == [("create", "new", ["Listen", "Manage", "Send"]), ("change", "old", ["Listen"])]
    pruned = plan([("q", with_rules(("same", {Right.LISTEN})))], there, prune=True)
    assert [(step.action, step.access) for step in pruned.changing] == [("delete", "old")]
