"""What SDKs send: the same descriptions in the spellings of Python, JavaScript and .NET."""

from __future__ import annotations

from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.gateway.http.atom_description import Site, read_description
from busbar.gateway.http.atom_rule import read_default_rule, read_rule
from busbar.gateway.http.atom_xml import read_entry
from busbar.model.entities import (
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    FalseFilter,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
    TypedText,
)
from busbar.model.errors import ArgumentError

ATOM = "http://www.w3.org/2005/Atom"
SB = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
XS = "http://www.w3.org/2001/XMLSchema"
SITE = Site("https", "localhost:5672", "2024-05", 256 * 1024, 1_700_000_000_000)
LONGEST = "P10675199DT2H48M5.4775807S"


def python(description: str) -> bytes:
    return (
        "<?xml version='1.0' encoding='utf-8'?>\n"
        f'<ns0:entry xmlns:ns0="{ATOM}" xmlns="{SB}" xmlns:xsi="{XSI}">'
        f'<ns0:content type="application/xml">{description}</ns0:content></ns0:entry>'
    ).encode()


def javascript(name: str, inner: str) -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?><entry xmlns="{ATOM}">'
        "<updated>2024-01-01T00:00:00.000Z</updated>"
        f'<content type="application/xml"><{name} xmlns="{SB}" xmlns:xsi="{XSI}">{inner}</{name}></content></entry>'
    ).encode()


def dotnet(name: str, inner: str) -> bytes:
    return (
        f'<entry xmlns="{ATOM}">\r\n  <title type="text">x</title>\r\n  <content type="application/xml">\r\n'
        f'    <{name} xmlns:i="{XSI}" xmlns="{SB}">\r\n{inner}\r\n    </{name}>\r\n  </content>\r\n</entry>'
    ).encode("utf-8-sig")


def element(body: bytes) -> Element:
    return read_entry(body)[1]


def queue(inner: str, current: QueueDescription | None = None) -> QueueDescription:
    read = read_description(QueueDescription, element(javascript("QueueDescription", inner)), current, SITE)
    assert isinstance(read, QueueDescription)
    return read


@pytest.mark.parametrize(
    "body",
    [
        python("<QueueDescription />"),
        javascript("QueueDescription", ""),
        dotnet("QueueDescription", "<ForwardTo i:nil='true' /><LockDuration />"),
    ],
)
def test_what_is_missing_is_the_default(body: bytes) -> None:
    name, found = read_entry(body)
    assert name == "QueueDescription"
    assert read_description(QueueDescription, found, None, SITE) == QueueDescription()


def test_every_property_of_a_queue_is_read_in_any_order() -> None:
    assert queue(
        "<EnableExpress>true</EnableExpress><EnablePartitioning>true</EnablePartitioning>"
        "<AutoDeleteOnIdle>PT10M</AutoDeleteOnIdle><UserMetadata> a &lt;b&gt; </UserMetadata><Status>SendDisabled</Status>"
        "<EnableBatchedOperations>false</EnableBatchedOperations><MaxDeliveryCount>3</MaxDeliveryCount>"
        "<DuplicateDetectionHistoryTimeWindow>PT20S</DuplicateDetectionHistoryTimeWindow>"
        "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"
        "<DefaultMessageTimeToLive>P1D</DefaultMessageTimeToLive><RequiresSession>true</RequiresSession>"
        "<RequiresDuplicateDetection>true</RequiresDuplicateDetection><MaxSizeInMegabytes>2048</MaxSizeInMegabytes>"
        "<LockDuration>PT30S</LockDuration><MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>"
        "<ForwardDeadLetteredMessagesTo>sb://localhost:5672/graves</ForwardDeadLetteredMessagesTo>"
    ) == QueueDescription(
        lock_duration=30_000,
        max_size_in_megabytes=2048,
        max_message_size=1024 * 1024,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=20_000,
        requires_session=True,
        default_message_time_to_live=86_400_000,
        dead_lettering_on_message_expiration=True,
        max_delivery_count=3,
        enable_batched_operations=False,
        enable_partitioning=True,
        enable_express=True,
        auto_delete_on_idle=600_000,
        status=EntityStatus.SEND_DISABLED,
        forward_dead_lettered_messages_to="graves",
        user_metadata=" a <b> ",
    )


def test_what_only_the_broker_knows_is_ignored() -> None:
    assert (
        queue(
            "<SizeInBytes>17</SizeInBytes><MessageCount>many</MessageCount><CreatedAt>x</CreatedAt><Surprise>1</Surprise>"
            "<EntityAvailabilityStatus>Limited</EntityAvailabilityStatus><SupportOrdering>no</SupportOrdering>"
            "<IsAnonymousAccessible>true</IsAnonymousAccessible>"
        )
        == QueueDescription()
    )


@pytest.mark.parametrize(
    "spelling",
    [
        "a/target",
        "/a/target",
        "sb://host/a/target",
        "https://localhost:5672/a/target/",
        "http://h/a%2Ftarget",
        " a/target ",
    ],
)
def test_forward_to_is_understood_in_every_spelling(spelling: str) -> None:
    read = queue(f"<ForwardTo>{spelling}</ForwardTo>")
    assert read.forward_to == "a/target"


def test_the_namespaces_own_message_size_comes_back_as_that() -> None:
    assert queue("<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes>").max_message_size == 0
    current = QueueDescription(max_message_size=2 * 1024 * 1024)
    assert queue("<MaxMessageSizeInKilobytes>2048</MaxMessageSizeInKilobytes>", current) == current


def test_an_update_keeps_what_is_fixed_and_resets_what_it_does_not_name() -> None:
    current = QueueDescription(enable_partitioning=True, requires_session=True, lock_duration=10_000)
    assert queue("", current) == QueueDescription(enable_partitioning=True, requires_session=True)
    changed = queue("<EnablePartitioning>false</EnablePartitioning>", current)
    assert not changed.enable_partitioning, "the catalogue must see the wish to refuse it"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<LockDuration>60</LockDuration>", "LockDuration is '60'; it must be an ISO 8601"),
        ("<MaxDeliveryCount>many</MaxDeliveryCount>", "MaxDeliveryCount is 'many'"),
        (
            "<RequiresSession>perhaps</RequiresSession>",
            "RequiresSession is 'perhaps'; it must be true or false",
        ),
        ("<Status>Creating</Status>", "Status is 'Creating'"),
        ("<AuthorizationRules><AuthorizationRule/></AuthorizationRules>", "no KeyName"),
    ],
)
def test_a_wrong_value_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        queue(text)


def test_topics_and_subscriptions_are_read() -> None:
    topic = read_description(
        TopicDescription,
        element(
            python(
                "<TopicDescription><DefaultMessageTimeToLive>PT1H</DefaultMessageTimeToLive><MaxSizeInMegabytes>3072"
                "</MaxSizeInMegabytes><FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>"
                "<SupportOrdering>false</SupportOrdering><SubscriptionCount>7</SubscriptionCount></TopicDescription>"
            )
        ),
        None,
        SITE,
    )
    assert topic == TopicDescription(
        default_message_time_to_live=3_600_000,
        max_size_in_megabytes=3072,
        filtering_messages_before_publishing=True,
        support_ordering=False,
    )
    subscription = read_description(
        SubscriptionDescription,
        element(
            dotnet(
                "SubscriptionDescription",
                f"<LockDuration>PT10S</LockDuration><DefaultMessageTimeToLive>{LONGEST}</DefaultMessageTimeToLive>"
                "<DeadLetteringOnFilterEvaluationExceptions>false</DeadLetteringOnFilterEvaluationExceptions>"
                "<ForwardTo>https://somewhere/there</ForwardTo>",
            )
        ),
        None,
        SITE,
    )
    assert subscription == SubscriptionDescription(
        lock_duration=10_000, dead_lettering_on_filter_evaluation_exceptions=False, forward_to="there"
    )


# Authorization rules


def access(inner: str) -> tuple[AuthorizationRule, ...]:
    return queue(f"<AuthorizationRules>{inner}</AuthorizationRules>").authorization_rules


def rule_xml(rights: str, keys: str = "") -> str:
    listed = "".join(f"<AccessRights>{right}</AccessRights>" for right in rights.split())
    return (
        '<AuthorizationRule xsi:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey</ClaimType>'
        f"<ClaimValue>None</ClaimValue><Rights>{listed}</Rights><KeyName>app</KeyName>{keys}</AuthorizationRule>"
    )


def test_authorization_rules_are_read_with_their_keys() -> None:
    keys = "<PrimaryKey>one+/=</PrimaryKey><SecondaryKey>two</SecondaryKey>"
    (rule,) = access(rule_xml("Send Listen", keys))
    assert rule == AuthorizationRule("app", frozenset((Right.SEND, Right.LISTEN)), "one+/=", "two")


def test_a_rule_without_keys_is_left_to_the_catalogue() -> None:
    assert access(rule_xml("send")) == (AuthorizationRule("app", frozenset((Right.SEND,)), "", ""),)


@pytest.mark.parametrize(
    ("inner", "complaint"),
    [
        (rule_xml("Send Fly"), "the right 'Fly'"),
        (
            rule_xml("Send").replace("SharedAccessAuth", "AllowAuth"),
            "must be 'SharedAccessAuthorizationRule'",
        ),
    ],
)
def test_a_wrong_authorization_rule_is_refused(inner: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        access(inner)


# Rules of subscriptions


def rule(inner: str) -> RuleDescription:
    return read_rule(element(dotnet("RuleDescription", inner)))


def test_filters_as_python_writes_them() -> None:
    read = read_rule(
        element(
            python(
                '<RuleDescription><Filter xsi:type="SqlFilter"><SqlExpression>size &gt; @min</SqlExpression>'
                "<CompatibilityLevel>20</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@min</Key>"
                f'<Value xsi:type="d6p1:int" xmlns:d6p1="{XS}">5</Value></KeyValueOfstringanyType>'
                "<KeyValueOfstringanyType><Key>@when</Key>"
                f'<Value xsi:type="d6p1:dateTime" xmlns:d6p1="{XS}">2020-01-01T00:00:00Z</Value>'
                "</KeyValueOfstringanyType></Parameters><RequiresPreprocessing>true</RequiresPreprocessing></Filter>"
                '<Action xsi:type="SqlRuleAction"><SqlExpression>SET a = 1</SqlExpression></Action><Name>r</Name>'
                "</RuleDescription>"
            )
        )
    )
    parameters = (("@min", 5), ("@when", TypedText("dateTime", "2020-01-01T00:00:00Z")))
    assert read == RuleDescription(SqlFilter("size > @min", parameters), SqlAction("SET a = 1"))


def test_filters_as_javascript_writes_them() -> None:
    read = read_rule(
        element(
            javascript(
                "RuleDescription",
                f'<Filter p4:type="CorrelationFilter" xmlns:p4="{XSI}"><CorrelationId>c</CorrelationId><Label/>'
                "<Properties><KeyValueOfstringanyType><Key>n</Key>"
                f'<Value xmlns:l28="{XS}" xmlns:p4="{XSI}" p4:type="l28:double">2</Value></KeyValueOfstringanyType>'
                f'<KeyValueOfstringanyType><Key>b</Key><Value xmlns:l28="{XS}" xmlns:p4="{XSI}" p4:type="l28:boolean">'
                f"true</Value></KeyValueOfstringanyType></Properties></Filter>"
                f'<Action p4:type="EmptyRuleAction" xmlns:p4="{XSI}"/><Name>r</Name>',
            )
        )
    )
    assert read.filter == CorrelationFilter(
        correlation_id="c", label="", properties=(("n", 2.0), ("b", True))
    )
    assert read.action is None


def test_the_fixed_filters() -> None:
    assert (
        rule('<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>').filter == TrueFilter()
    )
    assert (
        rule('<Filter i:type="FalseFilter"><SqlExpression>1&gt;1</SqlExpression></Filter>').filter
        == FalseFilter()
    )
    assert rule("") == RuleDescription(TrueFilter(), None)


@pytest.mark.parametrize(
    ("inner", "complaint"),
    [
        ("<Filter/>", "The Filter has the type ''"),
        ('<Filter i:type="MagicFilter"/>', "'MagicFilter'"),
        ('<Filter i:type="SqlFilter"/>', "no SqlExpression"),
        ('<Action i:type="Explode"/>', "'Explode'"),
        ('<Action i:type="SqlRuleAction"/>', "no SqlExpression"),
        (
            '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
            '<Value i:type="x:int">one</Value></KeyValueOfstringanyType></Properties></Filter>',
            "'one' of 'k' in the Properties",
        ),
        (
            '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
            "</KeyValueOfstringanyType></Properties></Filter>",
            "no Key or no Value",
        ),
    ],
)
def test_a_wrong_rule_is_refused(inner: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        rule(inner)


def test_a_subscription_may_bring_its_first_rule() -> None:
    def first(inner: str) -> tuple[str, RuleDescription] | None:
        return read_default_rule(element(dotnet("SubscriptionDescription", inner)))

    assert first("") is None
    unnamed = first('<DefaultRuleDescription><Filter i:type="FalseFilter"/></DefaultRuleDescription>')
    assert unnamed == ("$Default", RuleDescription(FalseFilter()))
    named = first("<DefaultRuleDescription><Name>mine</Name></DefaultRuleDescription>")
    assert named == ("mine", RuleDescription(TrueFilter()))


# What is no request

BOMB = b"""<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<entry xmlns="http://www.w3.org/2005/Atom"><content><QueueDescription>&b;</QueueDescription></content></entry>"""
EXTERNAL = b"""<!DOCTYPE entry [<!ENTITY x SYSTEM "file:///etc/passwd">]>
<entry><content><QueueDescription><UserMetadata>&x;</UserMetadata></QueueDescription></content></entry>"""
DTD = b"""<!DOCTYPE entry SYSTEM "http://127.0.0.1:1/x.dtd"><entry><content><QueueDescription/></content></entry>"""


@pytest.mark.parametrize("body", [BOMB, EXTERNAL, DTD])
def test_document_types_and_entities_are_refused(body: bytes) -> None:
    with pytest.raises(ArgumentError, match="document type or an entity"):
        read_entry(body)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "no body"),
        (b"  \n", "no body"),
        (b"{}", "not well-formed"),
        (b"<entry>", "not well-formed"),
        (b"\xff\xfe\x00", "not well-formed"),
        (b'<?xml version="1.0" encoding="klingon"?><entry/>', "not well-formed"),
        (b"<entry>&nbsp;</entry>", "not well-formed"),
        (b"<feed/>", "outermost element is 'feed'"),
        (b"<entry/>", "no description"),
        (b"<entry><content/></entry>", "no description"),
        (b"<entry><content>QueueDescription</content></entry>", "no description"),
        (b"<entry><content><A/><B/></content></entry>", "2 elements"),
    ],
)
def test_what_is_no_entry_is_refused(body: bytes, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        read_entry(body)


def test_deep_nesting_does_no_harm() -> None:
    deep = 100_000
    name, _ = read_entry(b"<entry><content>" + b"<a>" * deep + b"</a>" * deep + b"</content></entry>")
    assert name == "a"


_SAMPLES = [
    javascript(
        "QueueDescription",
        "<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes><Status>Active</Status>"
        f"<AuthorizationRules>{rule_xml('Send')}</AuthorizationRules><ForwardTo>sb://h/x</ForwardTo>",
    ),
    dotnet(
        "RuleDescription",
        '<Filter i:type="CorrelationFilter"><Label>l</Label><Properties><KeyValueOfstringanyType><Key>k</Key>'
        '<Value i:type="x:double">1.5</Value></KeyValueOfstringanyType></Properties></Filter>',
    ),
]


@given(
    st.sampled_from(_SAMPLES),
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 3), st.binary(min_size=1, max_size=4)), max_size=6
    ),
)
def test_any_bytes_are_a_description_or_an_error_that_says_why(
    body: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    for place, removed, inserted in edits:
        at = place % len(body)
        body = body[:at] + inserted + body[at + removed :]
    try:
        name, found = read_entry(body)
        if name == "RuleDescription":
            read_rule(found)
        else:
            read_description(QueueDescription, found, None, SITE)
    except ArgumentError as error:
        assert error.text
