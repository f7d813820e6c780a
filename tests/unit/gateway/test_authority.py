"""Tokens and passwords: what is granted, and every way to be refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote_plus

import pytest

from busbar.gateway.authority import Authority, Grant, SasRule
from busbar.model.errors import Unauthorized

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
    digest = hmac.new(key.encode(), f"{encoded}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest).decode())
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expiry}&skn={quote_plus(rule)}"


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
    assert AUTHORITY.verify_token(token(address), "", NOW).path == "q1"
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
