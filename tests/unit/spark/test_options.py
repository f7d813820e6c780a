"""Options of a reader: what they mean, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.spark.errors import OptionError
from busbar.spark.options import Position, SourceOptions
from busbar.spark.secrets import Secret

GIVEN = {"entity": "orders", "connectionStringEnv": "PLACE"}


def parsed(streaming: bool = True, **more: str) -> SourceOptions:
    return SourceOptions.parse({**GIVEN, **more}, streaming=streaming)


def test_defaults() -> None:
    stream = parsed()
    assert (stream.entity, stream.sub_queue, stream.stream, stream.consume) == (
        "orders",
        "",
        "messages",
        False,
    )
    assert stream.start == Position(word="latest")
    assert stream.wait == 300
    assert stream.bodies and stream.fail_on_loss and not stream.take_over
    assert stream.max_messages is None
    assert stream.max_partitions >= 1
    assert parsed(streaming=False).start == Position(word="earliest")


def test_names_are_not_case_sensitive_and_a_path_is_an_entity() -> None:
    options = SourceOptions.parse(
        {"PATH": "/orders/", "CONNECTIONSTRINGENV": "X", "Waitforbroker": "90"}, streaming=True
    )
    assert options.entity == "orders"
    assert options.wait == 90


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("300ms", 0.3), ("1m 30s", 90), ("1h30m", 5_400), ("PT1M", 60)]
)
def test_durations_are_those_of_the_command_line(text: str, seconds: float) -> None:
    assert (
        SourceOptions.parse(
            {"entity": "orders", "connectionStringEnv": "X", "waitForBroker": text}, streaming=True
        ).wait
        == seconds
    )


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("Earliest", Position(word="earliest")),
        ("1970-01-01T00:00:01Z", Position(time=1000)),
        ("1970-01-01T01:00:01+01:00", Position(time=1000)),
        ("1970-01-01 00:00:01", Position(time=1000)),
        ('{"1": 5, "0": 3}', Position(numbers=((0, 3), (1, 5)))),
        (f'{{"3": {3 << 48 | 7}}}', Position(numbers=((3, 7),))),
    ],
)
def test_positions(text: str, position: Position) -> None:
    assert Position.parse("startingPosition", text) == position


@pytest.mark.parametrize(
    ("streaming", "wrong", "said"),
    [
        (True, {"entity": ""}, "'entity' is missing"),
        (True, {"maxMessagePerTrigger": "5"}, "Did you mean 'maxMessagesPerTrigger'?"),
        (True, {"maxMessagesPerTrigger": "0"}, "'maxMessagesPerTrigger' is '0'"),
        (True, {"mode": "steal"}, "'tap' or 'consume'"),
        (True, {"includeBody": "yes"}, "'true' or 'false'"),
        (True, {"waitForBroker": "soon"}, "a duration such as"),
        (True, {"lease": "5m and"}, "a duration such as"),
        (True, {"startingPosition": "yesterday"}, "'earliest', 'latest', a time"),
        (True, {"startingPosition": '{"0": "x"}'}, "sequence numbers by fragment"),
        (True, {"startingPosition": '{"0": -1}'}, "not negative"),
        (True, {"endingPosition": "latest"}, "is for batches"),
        (False, {"maxMessagesPerTrigger": "5"}, "is for streams"),
        (False, {"mode": "consume"}, "needs a stream"),
        (True, {"mode": "consume", "stream": "events"}, "events cannot be consumed"),
        (True, {"connectionString": "Endpoint=sb://x"}, "cannot be given together"),
        (True, {"connectionStringEnv": ""}, "'connectionStringEnv' is missing"),
        (True, {"entities": "a,b"}, "'entities' cannot be given together with 'entity'"),
        (True, {"entity": "", "entities": " , "}, "'entities' is ' , '"),
        (True, {"entity": "", "entityPattern": "*", "path": "a"}, "together with load(...)"),
        (True, {"entity": "", "entityPattern": "*", "entities": "a"}, "together with 'entityPattern'"),
        (True, {"entity": "", "entities": "a,b", "startingPosition": '{"0": 1}'}, "the several entities"),
    ],
)
def test_what_is_wrong_is_named(streaming: bool, wrong: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=r"^\[BUSBAR_OPTION\] The option ") as caught:
        parsed(streaming, **wrong)
    assert said in str(caught.value)


def test_a_secret_shows_its_place_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    literal = Secret.from_options({"connectionstring": "Endpoint=sb://x;SharedAccessKey=hidden"})
    assert "hidden" not in repr(literal)
    assert literal.reveal().endswith("hidden")
    monkeypatch.setenv("PLACE", "Endpoint=sb://env")
    assert Secret.from_options({"connectionstringenv": "PLACE"}).reveal() == "Endpoint=sb://env"
    monkeypatch.delenv("PLACE")
    with pytest.raises(OptionError, match="'PLACE', which is not set"):
        Secret.from_options({"connectionstringenv": "PLACE"}).reveal()
    file = tmp_path / "secret"
    file.write_text("Endpoint=sb://file\nmore\n")
    assert Secret.from_options({"connectionstringfile": str(file)}).reveal() == "Endpoint=sb://file"
    with pytest.raises(OptionError, match="cannot read"):
        Secret.from_options({"connectionstringfile": str(tmp_path / "none")}).reveal()


def test_several_entities_are_named_once_each() -> None:
    given = {"connectionStringEnv": "PLACE", "entities": "orders, /Shop/bills/ ,ORDERS,a/$DeadLetterQueue"}
    options = SourceOptions.parse(given, streaming=False)
    assert options.entities == ("orders", "Shop/bills", "a/$deadletterqueue")
    assert options.several and not parsed().several
    one = options.of("a/$deadletterqueue")
    assert (one.entity, one.sub_queue, one.several) == ("a", "deadletter", False)
    dead = SourceOptions.parse(given | {"subQueue": "deadletter"}, streaming=False)
    assert dead.entities[:2] == ("orders/$deadletterqueue", "Shop/bills/$deadletterqueue")
