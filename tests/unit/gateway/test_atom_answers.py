"""What SDKs read: entries and feeds, with the details on which one or another of them insists."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from defusedxml.ElementTree import fromstring
from hypothesis import given
from hypothesis import strategies as st

from busbar.gateway.http.atom_description import EntityAnswer, Site, read_description
from busbar.gateway.http.atom_feed import (
    discovery_document,
    entry_document,
    feed_document,
    namespace_document,
)
from busbar.gateway.http.atom_rule import read_rule
from busbar.gateway.http.atom_xml import XmlWriter, read_entry
from busbar.model.api import EntityView, NamespaceProperties, RuntimeProperties
from busbar.model.entities import (
    AuthorizationRule,
    CorrelationFilter,
    Description,
    EntityStatus,
    FalseFilter,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    Tier,
    TopicDescription,
    TypedText,
)

ATOM = "{http://www.w3.org/2005/Atom}"
SB = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
CREATED = 1_700_000_000_000
SITE = Site("https", "localhost:5672", "2024-05", 256 * 1024, CREATED)


def document(
    path: str, description: Description, runtime: RuntimeProperties | None = None, site: Site = SITE
) -> str:
    view = EntityView(path, description, (1,), CREATED, CREATED + 1000)
    return entry_document(EntityAnswer(view, runtime or RuntimeProperties(), site), "busbar").decode()


def described(text: str) -> Element:
    content = fromstring(text).find(f"{ATOM}content")
    assert content is not None
    return content[0]


def values(text: str) -> dict[str, str | None]:
    return {element.tag.removeprefix(SB): element.text for element in described(text)}


def test_a_queue_to_the_last_character() -> None:
    runtime = RuntimeProperties(active=1, dead_letter=2, scheduled=3, deferred=4, size=500, accessed=CREATED)
    assert document("orders", QueueDescription(), runtime) == (
        '<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom">'
        "<id>https://localhost:5672/orders?api-version=2024-05</id>"
        '<title type="text">orders</title><published>2023-11-14T22:13:20.000Z</published>'
        "<updated>2023-11-14T22:13:21.000Z</updated><author><name>busbar</name></author>"
        '<link rel="self" href="https://localhost:5672/orders?api-version=2024-05"/>'
        '<content type="application/xml">'
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
        'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        "<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes>"
        "<RequiresDuplicateDetection>false</RequiresDuplicateDetection><RequiresSession>false</RequiresSession>"
        "<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>"
        "<DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>"
        "<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>"
        "<MaxDeliveryCount>10</MaxDeliveryCount><EnableBatchedOperations>true</EnableBatchedOperations>"
        "<SizeInBytes>500</SizeInBytes><MessageCount>10</MessageCount>"
        "<IsAnonymousAccessible>false</IsAnonymousAccessible><AuthorizationRules/><Status>Active</Status>"
        "<CreatedAt>2023-11-14T22:13:20.000Z</CreatedAt><UpdatedAt>2023-11-14T22:13:21.000Z</UpdatedAt>"
        "<AccessedAt>2023-11-14T22:13:20.000Z</AccessedAt><SupportOrdering>true</SupportOrdering>"
        '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        "<d2p1:ActiveMessageCount>1</d2p1:ActiveMessageCount><d2p1:DeadLetterMessageCount>2"
        "</d2p1:DeadLetterMessageCount><d2p1:ScheduledMessageCount>3</d2p1:ScheduledMessageCount>"
        "<d2p1:TransferMessageCount>0</d2p1:TransferMessageCount><d2p1:TransferDeadLetterMessageCount>0"
        "</d2p1:TransferDeadLetterMessageCount></CountDetails>"
        "<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle><EnablePartitioning>false</EnablePartitioning>"
        "<EntityAvailabilityStatus>Available</EntityAvailabilityStatus><EnableExpress>false</EnableExpress>"
        "<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes></QueueDescription></content></entry>"
    )


def test_a_partitioned_queue_shows_what_all_fragments_hold() -> None:
    shown = values(document("q", QueueDescription(enable_partitioning=True, max_size_in_megabytes=5120)))
    assert shown["MaxSizeInMegabytes"] == "81920"
    assert shown["SupportOrdering"] == "false"


def test_a_fragment_that_is_out_is_told() -> None:
    shown = values(document("q", QueueDescription(), RuntimeProperties(available=False)))
    assert shown["EntityAvailabilityStatus"] == "Limited"


def test_an_older_version_does_not_see_the_message_size() -> None:
    site = Site("https", "h", "2017-04", 1024, CREATED)
    assert "MaxMessageSizeInKilobytes" not in values(document("q", QueueDescription(), site=site))


def test_forwards_are_absolute_and_never_used_is_said_with_a_zone() -> None:
    description = SubscriptionDescription(forward_to="a/b", forward_dead_lettered_messages_to="c")
    shown = values(document("t/Subscriptions/s", description))
    assert shown["ForwardTo"] == "sb://localhost:5672/a/b"
    assert shown["ForwardDeadLetteredMessagesTo"] == "sb://localhost:5672/c"
    assert shown["AccessedAt"] == "0001-01-01T00:00:00Z"


def test_a_topic_has_its_elements() -> None:
    assert list(values(document("t", TopicDescription(user_metadata="m"), RuntimeProperties(subscriptions=3)))) == [
        "DefaultMessageTimeToLive", "MaxSizeInMegabytes", "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow", "EnableBatchedOperations", "SizeInBytes",
        "FilteringMessagesBeforePublishing", "IsAnonymousAccessible", "AuthorizationRules", "Status", "UserMetadata",
        "CreatedAt", "UpdatedAt", "AccessedAt", "SupportOrdering", "CountDetails", "SubscriptionCount",
        "SqlFilterCount", "CorrelationFilterCount", "AutoDeleteOnIdle", "EnablePartitioning",
        "EntityAvailabilityStatus", "EnableSubscriptionPartitioning", "EnableExpress", "MaxMessageSizeInKilobytes",
    ]  # fmt: skip


def test_names_are_where_each_sdk_looks_for_them() -> None:
    root = fromstring(document("a/t/Subscriptions/s/Rules/$Default", RuleDescription()))
    assert root.findtext(f"{ATOM}title") == "$Default"
    identity = root.findtext(f"{ATOM}id") or ""
    assert identity.startswith("https://localhost:5672/a/t/Subscriptions/s/Rules/$Default?")


def test_types_are_spelt_as_javascript_reads_them() -> None:
    parameters = (
        ("a", 1),
        ("b", "x"),
        ("c", 1.5),
        ("d", True),
        ("e", TypedText("dateTime", "2020-01-01T00:00:00Z")),
    )
    text = document("t/Subscriptions/s/Rules/r", RuleDescription(SqlFilter("a=1", parameters), None))
    for expected in (
        '<Filter i:type="SqlFilter"><SqlExpression>a=1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>',
        '<Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">1</Value>',
        '<Value i:type="d6p1:double" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">1.5</Value>',
        '<Value i:type="d6p1:boolean" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">true</Value>',
        '<Action i:type="EmptyRuleAction"/>',
        "<Name>r</Name>",
    ):
        assert expected in text
    assert 'i:type="FalseFilter"><SqlExpression>1=0<' in document(
        "t/Subscriptions/s/Rules/r", RuleDescription(FalseFilter())
    )


def test_a_page_leads_to_the_next_by_its_second_link() -> None:
    view = EntityView("q", QueueDescription(), (1,), CREATED, CREATED)
    shown = [EntityAnswer(view, RuntimeProperties(), SITE)]
    page = fromstring(
        feed_document("$Resources/Queues", "Queues", shown, SITE, "busbar", "$skip=100&$top=100&")
    )
    links = [(link.get("rel"), link.get("href")) for link in page.findall(f"{ATOM}link")]
    address = "https://localhost:5672/$Resources/Queues?"
    assert links == [
        ("self", f"{address}api-version=2024-05"),
        ("next", f"{address}$skip=100&$top=100&api-version=2024-05"),
    ]
    assert len(page.findall(f"{ATOM}entry")) == 1
    last = fromstring(feed_document("$Resources/Queues", "Queues", [], SITE, "busbar", ""))
    assert len(last.findall(f"{ATOM}link")) == 1


def test_the_root_leads_to_the_lists() -> None:
    feed = fromstring(discovery_document({"Queues": "$Resources/Queues"}, SITE))
    assert [entry.findtext(f"{ATOM}title") for entry in feed.findall(f"{ATOM}entry")] == ["Queues"]


def test_the_namespace() -> None:
    def shown(tier: Tier) -> dict[str, str | None]:
        return values(
            namespace_document(NamespaceProperties("busbar", tier, CREATED, CREATED), SITE).decode()
        )

    assert shown(Tier.STANDARD) == {
        "CreatedTime": "2023-11-14T22:13:20.000Z",
        "MessagingSKU": "Standard",
        "ModifiedTime": "2023-11-14T22:13:20.000Z",
        "Name": "busbar",
        "NamespaceType": "Messaging",
    }
    assert shown(Tier.PREMIUM)["MessagingUnits"] == "1"


HOSTILE = "</title><script>&\"'\x00\ud800"


def test_what_comes_from_users_is_never_markup() -> None:
    site = Site("https", HOSTILE, "2024-05", 1024, CREATED)
    text = document(HOSTILE, QueueDescription(user_metadata=HOSTILE), site=site)
    assert "<script>" not in text
    root = fromstring(text)
    assert root.findtext(f"{ATOM}title") == "</title><script>&\"'\ufffd\ufffd"


@given(st.text())
def test_any_text_that_xml_can_hold_comes_back(text: str) -> None:
    xml = XmlWriter()
    with xml.inside("entry"), xml.inside("content"), xml.inside("QueueDescription", {"note": text}):
        xml.element("UserMetadata", text)
    _, element = read_entry(xml.document())
    expected = "".join(
        char if char in "\t\n\r" or (char >= " " and char not in "\ufffe\uffff") else "\ufffd"
        for char in text
    )
    assert (element[0].text or "") == expected


# Round trips: what is written is read as what it was

_durations = st.integers(1, 10**12)
_names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-._~", min_size=1, max_size=20)
_text = st.text(
    st.characters(min_codepoint=32, exclude_characters="\ufffe\uffff", exclude_categories=["Cs"]), min_size=1
)
_access = st.builds(
    AuthorizationRule,
    name=_names,
    rights=st.sampled_from(
        [frozenset((Right.SEND,)), frozenset((Right.SEND, Right.LISTEN)), frozenset(Right)]
    ),
    primary_key=_names,
    secondary_key=_names,
)
_shared = {
    "max_size_in_megabytes": st.sampled_from([1024, 2048, 5120]),
    "duplicate_detection_history_time_window": _durations,
    "default_message_time_to_live": st.integers(0, 10**12),
    "auto_delete_on_idle": st.integers(0, 10**12),
    "user_metadata": st.one_of(st.just(""), _text),
    "authorization_rules": st.lists(_access, max_size=3, unique_by=lambda rule: rule.name).map(tuple),
    "status": st.sampled_from(list(EntityStatus)),
}
_queues = st.builds(
    QueueDescription,
    lock_duration=_durations,
    max_delivery_count=st.integers(1, 2**31 - 1),
    forward_dead_lettered_messages_to=st.one_of(st.just(""), _names),
    **_shared,  # type: ignore[arg-type]
)
_topics = st.builds(TopicDescription, **_shared)  # type: ignore[arg-type]
_subscriptions = st.builds(
    SubscriptionDescription, lock_duration=_durations, forward_to=st.just("x"), auto_delete_on_idle=st.just(0)
)


@given(st.one_of(_queues, _topics, _subscriptions))
def test_a_description_comes_back(
    description: QueueDescription | TopicDescription | SubscriptionDescription,
) -> None:
    name, element = read_entry(document("e", description).encode())
    assert name == type(description).__name__
    assert read_description(type(description), element, description, SITE) == description


_parameters = st.dictionaries(
    _text,
    st.one_of(_text, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans()),
    max_size=4,
).map(lambda found: tuple(found.items()))
_sql = st.builds(SqlFilter, _names, _parameters)
_correlation = st.builds(
    CorrelationFilter, correlation_id=st.one_of(st.none(), _text), label=_text, properties=_parameters
)


@given(
    st.builds(
        RuleDescription,
        st.one_of(_sql, _correlation),
        st.one_of(st.none(), st.builds(SqlAction, _names, _parameters)),
    )
)
def test_a_rule_comes_back(rule: RuleDescription) -> None:
    _, element = read_entry(document("t/Subscriptions/s/Rules/r", rule).encode())
    assert read_rule(element) == rule
