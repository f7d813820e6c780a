"""Tokens and passwords: what is granted, and every way to be refused."""

from __future__ import annotations

from urllib.parse import quote_plus

import pytest

from busbar.gateway.authority import Authority, Grant
from busbar.model.entities import AuthorizationRule, Right
from busbar.model.errors import Unauthorized
from busbar.model.sas import SasRule, sign_encoded

ROOT = SasRule("RootManageSharedAccessKey", ("SAS_KEY_VALUE", "second"), frozenset({"Manage"}))
READER = SasRule("reader", ("listen-key",), frozenset({"Listen"}))
AUTHORITY = Authority([ROOT, READER])
NOW = 1_767_225_000_000


def token(
    resource: str = "sb://localhost/q1",
    key: str = "SAS_KEY_VALUE",
    rule: str = "RootManageSharedAccessKey",
    expiry: int = 1_767_225_600,
    encode: bool = True,
) -> str:
    encoded = quote_plus(resource) if encode else resource
    return sign_encoded(encoded, rule, key, expiry)


def test_a_known_vector() -> None:
    known = (
        "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2Fq1&sig=ozajra7ngCI14DNYHfQNvBR6EBkipKZj2y0DPTFjJeE%3D"
        "&se=1767225600&skn=RootManageSharedAccessKey"
    )
    assert known == token()
    grant = AUTHORITY.verify_token(known, "sb://localhost/q1", NOW)
    assert grant == Grant("q1", frozenset({"Send", "Listen", "Manage"}), 1_767_225_600_000)


def test_the_secondary_key_is_as_good() -> None:
    assert AUTHORITY.verify_token(token(key="second"), "sb://localhost/q1", NOW).path == "q1"


def test_the_fields_come_in_any_order() -> None:
    fields = token().removeprefix("SharedAccessSignature ").split("&")
    assert (
        AUTHORITY.verify_token("SharedAccessSignature " + "&".join(reversed(fields)), "q1", NOW).path == "q1"
    )


def test_the_signature_is_over_the_resource_as_it_was_encoded() -> None:
    lowered = quote_plus("sb://localhost/q1").lower()
    assert AUTHORITY.verify_token(token(lowered, encode=False), "sb://localhost/q1", NOW).path == "q1"


@pytest.mark.parametrize("address", ["https://localhost:5672/q1?api-version=2021-05", "localhost/q1/?a=/b"])
def test_the_url_of_a_request_counts_by_its_path(address: str) -> None:
    """The JavaScript and .NET administration clients sign the URL they ask for."""
    assert AUTHORITY.verify_token(token(address), "https://localhost/q1", NOW).path == "q1"
    with pytest.raises(Unauthorized):
        AUTHORITY.verify_token(token(address), "sb://localhost/b", NOW)


def test_rights_are_those_of_the_rule() -> None:
    assert AUTHORITY.verify_token(token(key="listen-key", rule="reader"), "q1", NOW).rights == {"Listen"}


def test_a_namespace_token_covers_everything_below() -> None:
    grant = AUTHORITY.verify_token(token("sb://localhost/"), "sb://localhost/any/queue", NOW)
    assert grant.covers("any/queue") and grant.covers("other")


@pytest.mark.parametrize(
    ("path", "covered"),
    [
        ("q1", True),
        ("Q1", True),
        ("q1/$management", True),
        ("q1/$DeadLetterQueue", True),
        ("q10", False),
        ("q", False),
    ],
)
def test_a_queue_token_covers_the_queue_and_what_is_below(path: str, covered: bool) -> None:
    assert Grant("q1", frozenset(), 0).covers(path) is covered


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (token(key="wrong"), "signature"),
        (token(rule="nobody"), "signature"),
        (token(expiry=1_767_224_000), "expired"),
        (token().replace("&se=1767225600", "&se=1867225600"), "signature"),
        (token().replace("&se=1767225600", "&se=soon"), "'se'"),
        (token().replace("&skn=RootManageSharedAccessKey", ""), "'skn'"),
        (token("sb://localhost/q2"), "audience"),
        (token() + "&skn=reader", "twice"),
        ("SharedAccessSignatur", "not a shared access signature"),
        ("eyJ0eXAiOiJKV1QifQ.e30.x", "not a shared access signature"),
        ("SharedAccessSignature sr=%FF&sig=%FF&se=1867225600&skn=%FF", "signature"),
        ("SharedAccessSignature " + "x" * 5000, "characters"),
    ],
)
def test_refused_and_the_secret_is_not_in_the_text(bad: str, says: str) -> None:
    with pytest.raises(Unauthorized) as refusal:
        AUTHORITY.verify_token(bad, "sb://localhost/q1", NOW)
    assert says in refusal.value.text
    assert "SAS_KEY_VALUE" not in refusal.value.text
    assert len(bad) < 30 or bad not in refusal.value.text


def test_a_password_is_a_rules_key() -> None:
    assert AUTHORITY.verify_password("reader", "listen-key") == Grant("", frozenset({"Listen"}), 0)
    for name, key in [("reader", "SAS_KEY_VALUE"), ("nobody", ""), ("reader", "")]:
        with pytest.raises(Unauthorized):
            AUTHORITY.verify_password(name, key)


def test_a_rule_does_not_print_its_keys() -> None:
    assert "SAS_KEY_VALUE" not in repr(ROOT)


# Rules of entities

EVERYTHING = frozenset({"Send", "Listen", "Manage"})


class Entities:
    """Authorization rules by entity, as a catalogue has them."""

    def __init__(self) -> None:
        self.rules: dict[str, list[AuthorizationRule]] = {
            "orders": [AuthorizationRule("sender", frozenset({Right.SEND}), "o1", "o2")],
            "news": [
                AuthorizationRule("reader", frozenset({Right.LISTEN}), "n1", "n2"),
                AuthorizationRule("owner", frozenset(Right), "n3", "n4"),
            ],
        }
        self.authority = Authority([ROOT, READER], lambda path: self.rules.get(path.lower(), ()))

    def grant(self, resource: str, rule: str, key: str) -> Grant:
        return self.authority.verify_token(token(resource, key, rule), "", NOW)


@pytest.mark.parametrize("key", ["o1", "o2"])
def test_a_rule_of_an_entity_opens_that_entity_with_either_key(key: str) -> None:
    grant = Entities().grant("sb://h/Orders", "sender", key)
    assert grant.rights == {"Send"}
    assert grant.owner == "orders"
    for path in ("orders", "ORDERS/$DeadLetterQueue", "orders/$management", "orders/messages/head"):
        assert grant.covers(path)
    assert Entities().grant("https://h/orders/messages", "sender", key).covers("orders/messages")


@pytest.mark.parametrize(
    "path", ["orders/eu", "orders/eu/$management", "ordersx", "other", "orders/eu/subscriptions/s"]
)
def test_a_rule_of_an_entity_says_nothing_of_others(path: str) -> None:
    """`orders/eu` is a queue of its own, although its path begins with that of `orders`."""
    entities = Entities()
    assert not entities.grant("sb://h/orders", "sender", "o1").covers(path)
    with pytest.raises(Unauthorized, match="signature"):
        entities.grant(f"sb://h/{path}", "sender", "o1")


def test_a_rule_of_an_entity_does_not_sign_for_the_namespace() -> None:
    for resource in ("sb://h/", "sb://h", "h:5671"):
        with pytest.raises(Unauthorized, match="signature"):
            Entities().grant(resource, "sender", "o1")


@pytest.mark.parametrize(
    "resource", ["sb://h/news", "sb://h/news/Subscriptions/a", "sb://h/News/subscriptions/a/$DeadLetterQueue"]
)
def test_a_topic_is_above_its_subscriptions_and_the_namespace_above_all(resource: str) -> None:
    entities = Entities()
    assert entities.grant(resource, "owner", "n3").rights == EVERYTHING
    assert entities.grant(resource, "RootManageSharedAccessKey", "second").owner == ""
    assert entities.grant(resource, "reader", "n1").owner == "news"
    assert entities.grant(resource, "reader", "listen-key").owner == "", (
        "the namespace has a rule of that name too"
    )
    assert entities.grant("sb://h/news", "owner", "n3").covers("news/subscriptions/a/$DeadLetterQueue")


def test_what_a_rule_granted_ends_with_it() -> None:
    entities = Entities()
    grant = entities.grant("sb://h/news", "owner", "n4")
    assert entities.authority.renewed(grant) == grant
    entities.rules["news"] = [AuthorizationRule("owner", frozenset({Right.SEND}), "n3", "n4")]
    narrower = entities.authority.renewed(grant)
    assert narrower is not None and narrower.rights == {"Send"}
    entities.rules["news"] = [AuthorizationRule("owner", frozenset(Right), "n3", "another")]
    assert entities.authority.renewed(grant) is None, "its key was changed"
    entities.rules.clear()
    assert entities.authority.renewed(grant) is None
    root = AUTHORITY.verify_token(token(), "", NOW)
    assert AUTHORITY.renewed(root) == root


def test_a_grant_does_not_print_its_key() -> None:
    assert "o1" not in repr(Entities().grant("sb://h/orders", "sender", "o1"))


@pytest.mark.parametrize(
    ("resource", "audience", "path"),
    [
        ("q1", "sb://localhost:5672/q1", "q1"),
        ("/q1", "sb://localhost/q1", "q1"),
        ("queue.1", "sb://localhost/queue.1", "queue.1"),
        ("localhost/q1", "sb://localhost:5672/q1", "q1"),
        ("LocalHost", "sb://localhost:5672/q1", ""),
        ("127.0.0.1/q1", "sb://localhost/q1", "q1"),
        ("Example.servicebus.windows.net/q1", "sb://localhost/q1", "q1"),
        ("localhost:5672/q1", "amqps://127.0.0.1/q1", "q1"),
        ("localhost:5672", "q1", ""),
        ("[::1]:5672/q1", "q1", "q1"),
        ("q1:x", "sb://localhost/q1:x", "q1:x"),
        (":", ":", ":"),
        ("https://other/q1?api-version=2017-04", "sb://localhost/q1", "q1"),
    ],
)
def test_a_resource_without_a_scheme_is_a_path_unless_it_names_the_host(
    resource: str, audience: str, path: str
) -> None:
    assert AUTHORITY.verify_token(token(resource), audience, NOW).path == path


@pytest.mark.parametrize("audience", ["sb://localhost/q2", "sb://localhost/", "q2", "sb://q1/", "sb://q1/q2"])
def test_a_token_for_a_bare_name_does_not_open_the_namespace(audience: str) -> None:
    with pytest.raises(Unauthorized, match="does not include"):
        AUTHORITY.verify_token(token("q1"), audience, NOW)


def test_a_token_is_taken_for_as_long_as_the_grace() -> None:
    late = NOW + 600_000 + 59_999
    assert AUTHORITY.verify_token(token(), "", late, 60_000).path == "q1"
    with pytest.raises(Unauthorized, match="expired 60 s ago"):
        AUTHORITY.verify_token(token(), "", late + 1, 60_000)


def test_a_path_that_nothing_can_have_is_refused_before_it_is_looked_up() -> None:
    with pytest.raises(Unauthorized, match="characters"):
        AUTHORITY.verify_token(token("sb://h/" + "a/$" * 300, "x"), "", NOW)
