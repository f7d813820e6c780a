"""ARM templates: what is read of them, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.cli.arm_expressions import ExpressionError, TemplateValues
from busbar.cli.arm_template import TemplateError, is_template, read_template

VALUES = TemplateValues(
    {"ns": "Contoso", "list": ["a", "b"]},
    {
        "queue": "[concat(parameters('ns'), '-', 'q')]",
        "deep": {"x": [1, {"y": "z"}]},
        "loop": "[variables('loop')]",
    },
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("[[not an expression]", "[not an expression]"),
        ("['it''s']", "it's"),
        ("[variables('queue')]", "Contoso-q"),
        ("[concat(parameters('list'), createArray('c'))]", ["a", "b", "c"]),
        ("[format('{0}/{1}/{0}', parameters('ns'), 7)]", "Contoso/7/Contoso"),
        ("[toLower(Parameters('NS'))]", "contoso"),
        ("[variables('deep').x[1]['y']]", "z"),
        ("[if(equals(parameters('ns'), 'contoso'), 'yes', 'no')]", "yes"),
        ("[resourceGroup().location]", "local"),
        ("[not(empty(''))]", False),
    ],
)
def test_expressions(text: str, value: object) -> None:
    assert VALUES.evaluate(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[uniqueString('x')]", "function uniqueString is not supported"),
        ("[parameters('none')]", "no parameter 'none'"),
        ("[variables('loop')]", "without an end"),
        ("[concat('a',]", "cannot be read"),
        ("[variables('deep').none]", "no part 'none'"),
        ("[format('{3}', 'a')]", "asks for number 3"),
        ("[" + "concat(" * 60 + "'a'" + ")" * 60 + "]", "too deeply"),
    ],
)
def test_expressions_that_cannot_be_evaluated(text: str, problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem):
        VALUES.evaluate(text)


def test_a_text_that_does_not_end_with_a_bracket_is_no_expression() -> None:
    assert VALUES.evaluate("[concat('a'") == "[concat('a'"


SQL = {"sqlExpression": "a=1", "compatibilityLevel": 20}


def resource(kind: str, name: str, **properties: Any) -> dict[str, Any]:
    return {"type": f"Microsoft.ServiceBus/namespaces{kind}", "name": name, "properties": properties}


def template(*resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"$schema": "https://x/deploymentTemplate.json#", "resources": [*resources], **more}


def test_resources_become_entities() -> None:
    inner = {"type": "subscriptions", "name": "s", "properties": {"requiresSession": True}}
    found = read_template(
        template(
            {**resource("", "[parameters('ns')]"), "sku": {"name": "Premium"}, "location": "x"},
            resource("/queues", "[concat(parameters('ns'), '/eu~orders')]", lockDuration="PT1M"),
            {**resource("/topics", "ns/t"), "resources": [inner]},
            resource(
                "/topics/subscriptions/rules",
                "ns/t/s/r",
                filterType="SqlFilter",
                sqlFilter=SQL,
            ),
            resource("/queues/authorizationRules", "ns/eu~orders/send", rights=["Send"]),
            resource("/authorizationRules", "ns/all", rights=["Listen"]),
            {**resource("/queues", "ns/off"), "condition": "[equals('a', 'b')]"},
            {"type": "Microsoft.Storage/storageAccounts", "name": "disk"},
            parameters={"ns": {"type": "string"}},
        ),
        {"NS": "ns"},
    )
    (space,) = found.document["UserConfig"]["Namespaces"]
    (queue,) = space["Queues"]
    assert queue == {
        "Name": "eu/orders",
        "Properties": {"lockDuration": "PT1M"},
        "AuthorizationRules": [{"Name": "send", "Rights": ["Send"]}],
    }
    (topic,) = space["Topics"]
    (subscription,) = topic["Subscriptions"]
    assert subscription["Properties"] == {"requiresSession": True}
    assert subscription["Rules"] == [
        {"Name": "r", "Properties": {"FilterType": "Sql", "sqlFilter": {"sqlExpression": "a=1"}}}
    ]
    assert found.document["Busbar"] == {"Tier": "Premium"} and found.access == [("all", ["Listen"])]
    assert found.notes == [
        "Microsoft.Storage/storageAccounts 'disk' is left out: it is not of Microsoft.ServiceBus."
    ]


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        (
            [resource("/queues", "ns/q", isClientAffine=True)],
            "queues 'ns/q': the property 'isClientAffine' is not",
        ),
        (
            [resource("/queues", "ns/q", lockDuration="soon")],
            "queues 'ns/q': Properties.LockDuration is 'soon'",
        ),
        ([resource("/queues", "q")], "the name has 1 parts"),
        ([resource("/queues", "ns/q"), resource("/queues", "ns/Q")], "in the template twice"),
        ([resource("", "ns", encryption={})], "namespaces 'ns': the property 'encryption' is not supported"),
        (
            [resource("/networkRuleSets", "ns/default")],
            "type Microsoft.ServiceBus/namespaces/networkRuleSets are not",
        ),
        ([resource("/topics/subscriptions", "ns/t/s")], "'ns/t/s': the template does not have the entity"),
        ([{**resource("/queues", "ns/q"), "copy": {}}], "'copy' is not supported"),
        ([resource("/queues", "[guid('x')]")], "name: the function guid is not supported"),
        ([resource("/queues/authorizationRules", "ns/q/r", rights=["Send"])], "does not have the entity"),
        ([resource("/authorizationRules", "ns/r", rights=[])], "rights is"),
    ],
)
def test_what_is_not_supported_is_named(resources: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(TemplateError) as caught:
        read_template(template(*resources), {})
    assert problem in str(caught.value)


def test_parameters_are_checked() -> None:
    declared = {"a": {"type": "string"}, "b": {"defaultValue": "x"}}
    with pytest.raises(TemplateError, match="parameter 'a' has no value"):
        read_template(template(parameters=declared), {})
    with pytest.raises(TemplateError, match="no parameter 'c'"):
        read_template(template(parameters=declared), {"a": "1", "c": "2"})


def test_templates_are_recognized() -> None:
    assert is_template(template()) and is_template({"resources": [], "contentVersion": "1.0.0.0"})
    assert not is_template({"UserConfig": {}}) and not is_template([])
