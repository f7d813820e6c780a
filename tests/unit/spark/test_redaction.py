"""What Spark prints of connection strings: neither keys nor tokens."""

from __future__ import annotations

import re

import pytest

from busbar.client.connection_string import parse_connection_string
from busbar.spark.session import COMMON, REDACTED_OPTIONS, REDACTED_TEXT

ADDRESS = "Endpoint=sb://127.0.0.1:5672/;"
BY_KEY = parse_connection_string(f"{ADDRESS}SharedAccessKeyName=rule;SharedAccessKey=hidden")
TOKEN = BY_KEY.token_for("orders", 4_000_000_000)
SIGNATURE = TOKEN.partition("sig=")[2].partition("&")[0]
SECRETS = {
    "key": ("SharedAccessKeyName=rule;SharedAccessKey=hidden", "hidden"),
    "key with blanks": ("SharedAccessKeyName = rule; SharedAccessKey = hidden", "hidden"),
    "token": (f"SharedAccessSignature={TOKEN}", SIGNATURE),
    "token with blanks": (f"SharedAccessSignature = {TOKEN}", SIGNATURE),
    "token in lower case": (f"sharedaccesssignature={TOKEN}".replace("Shared", "shared"), SIGNATURE),
    "token without its first word": (f"SharedAccessSignature={TOKEN.partition(' ')[2]}", SIGNATURE),
    "token, in another order": ("SharedAccessSignature sig=hidden&se=1&sr=a&skn=b", "hidden"),
    "token of a resource with a blank": ("SharedAccessSignature sr=sb://h/a b&sig=hidden&se=1", "hidden"),
}
PLACES = (
    "{};EntityPath=orders",
    "Map(connectionstring -> {}, entity -> orders)",
    "[connectionString={},entity=orders]",
    '{{"connectionString":"{}","entity":"orders"}}',
    "ValueError: '{}' is nothing for orders",
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", SECRETS)
def test_a_secret_is_redacted_wherever_it_is_printed(form: str, place: str) -> None:
    text, secret = SECRETS[form]
    printed = re.sub(REDACTED_TEXT, "*", place.format(ADDRESS + text))
    assert secret not in printed
    assert ADDRESS in printed and "orders" in printed, "the rest is shown"


@pytest.mark.parametrize("form", ["key", "token"])
def test_a_setting_that_has_one_is_redacted_whatever_its_name(form: str) -> None:
    assert re.search(REDACTED_OPTIONS, ADDRESS + SECRETS[form][0])
    assert re.search(REDACTED_OPTIONS, "spark.executorEnv.connectionString")


def test_what_only_speaks_of_secrets_is_shown() -> None:
    text = "it needs SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature, and not more"
    assert re.sub(REDACTED_TEXT, "*", text) == text


def test_every_session_has_both() -> None:
    assert COMMON["spark.redaction.regex"] == REDACTED_OPTIONS
    assert COMMON["spark.redaction.string.regex"] == REDACTED_TEXT


CREDENTIALS = ("user:hidden", "Bearer hidden", "Basic hidden==")


@pytest.mark.parametrize("secret", CREDENTIALS)
@pytest.mark.parametrize(
    "place",
    [
        "Map(schemaregistrycredentials -> {}, entity -> orders)",
        "[schemaRegistryCredentials={},entity=orders]",
        '{{"schemaRegistryCredentials":"{}","entity":"orders"}}',
    ],
)
def test_credentials_of_a_registry_are_redacted(place: str, secret: str) -> None:
    printed = re.sub(REDACTED_TEXT, "*", place.format(secret))
    assert "hidden" not in printed and "orders" in printed
    assert re.search(REDACTED_OPTIONS, "schemaRegistryCredentials")
    assert not re.search(REDACTED_OPTIONS, "schemaRegistryCredentialsEnv")
