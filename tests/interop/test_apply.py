"""`busbar export` and `busbar apply`: a namespace from a file, the plan before it, and nothing to do the second time."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from busbar.cli.main import run
from harness.serving import Busbar, serving
from tests.interop.test_sessions_enabled import serves_sessions

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.server({"q": {"LockDuration": "PT30S"}}, {"min_lock_duration": 100}),
]
TEMPLATE = {
    "$schema": "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#",
    "contentVersion": "1.0.0.0",
    "parameters": {"ns": {"type": "string", "defaultValue": "contoso"}, "sessions": {"type": "bool"}},
    "variables": {"queue": "[concat(parameters('ns'), '/by-template')]"},
    "resources": [
        {
            "type": "Microsoft.ServiceBus/namespaces",
            "name": "[parameters('ns')]",
            "sku": {"name": "Standard"},
        },
        {
            "type": "Microsoft.ServiceBus/namespaces/queues",
            "name": "[variables('queue')]",
            "properties": {"requiresSession": "[parameters('sessions')]", "maxDeliveryCount": 3},
        },
    ],
}
CONFIG: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {"Name": "a", "Properties": {"ForwardTo": "z", "MaxDeliveryCount": 7}},
                    {
                        "Name": "z",
                        "Properties": {"LockDuration": "PT45S"},
                        "AuthorizationRules": [{"Name": "send", "Rights": ["Send"]}],
                    },
                ],
                "Topics": [
                    {
                        "Name": "news",
                        "Subscriptions": [
                            {
                                "Name": "eu",
                                "Rules": [
                                    {
                                        "Name": "large",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "amount > 100"},
                                            "Action": {"SqlExpression": "SET seen = 1"},
                                        },
                                    },
                                    {
                                        "Name": "red",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "Label": "red",
                                                "Properties": {"n": 5, "ok": True},
                                            },
                                        },
                                    },
                                ],
                            }
                        ],
                    }
                ],
            }
        ]
    }
}


def busbar(server: Busbar, *arguments: str, code: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run([*arguments, "--data", str(server.data)]) == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def written(path: Path, value: object) -> str:
    path.write_text(json.dumps(value))
    return str(path)


@pytest.mark.req("S17")
async def test_a_template_enables_sessions(server: Busbar, tmp_path: Path) -> None:
    file = written(tmp_path / "template.json", TEMPLATE)
    arguments = ("apply", file, "--parameters", "sessions=true")
    out, _ = await asyncio.to_thread(busbar, server, *arguments, "--dry-run", code=5)
    assert out.splitlines() == ["+ create queue by-template", "1 to change, 0 unchanged"]
    await asyncio.to_thread(busbar, server, *arguments, "--yes")
    assert await serves_sessions(server, "by-template")
    out, _ = await asyncio.to_thread(busbar, server, *arguments, "--dry-run")
    assert out.splitlines() == ["0 to change, 1 unchanged"]
    _, err = await asyncio.to_thread(busbar, server, "apply", file, "-p", "sessions=false", "--yes", code=4)
    assert "RequiresSession is fixed at creation" in err and "Nothing was changed" in err


def test_a_configuration_is_applied_changed_and_pruned(server: Busbar, tmp_path: Path) -> None:
    file = written(tmp_path / "Config.json", CONFIG)
    out, err = busbar(server, "apply", file, code=2)
    assert "Nobody can answer here" in err and "+ create rule news/Subscriptions/eu/Rules/large" in out
    out, err = busbar(server, "apply", file, "--yes")
    assert out.index("queue z") < out.index("queue a"), "the target of a forward comes first"
    assert "created authorization rule send of z" in err
    rules = json.loads(
        busbar(server, "rule", "list", "--topic", "news", "--subscription", "eu", "-o", "json")[0]
    )
    assert [rule["name"] for rule in rules] == ["large", "red"], "without the default rule"
    assert rules[1]["correlationFilter"]["properties"]["n"] == {"type": "int", "value": "5"}
    assert "0 to change, 7 unchanged" in busbar(server, "apply", file)[0]

    space = CONFIG["UserConfig"]["Namespaces"][0]
    changed = json.loads(json.dumps(CONFIG))
    changed["UserConfig"]["Namespaces"][0]["Queues"][0]["Properties"] = {"MaxDeliveryCount": 8}
    changed["UserConfig"]["Namespaces"][0]["Topics"] = []
    file = written(tmp_path / "changed.json", changed)
    out, _ = busbar(server, "apply", file, "--yes")
    assert out.splitlines() == [
        "~ change queue a",
        "      MaxDeliveryCount: 7 -> 8",
        "      ForwardTo: z -> none",
        "1 to change, 2 unchanged",
    ], space
    plan = json.loads(busbar(server, "apply", file, "--prune", "--dry-run", "-o", "json", code=5)[0])
    assert {"delete topic news", "delete queue q"} <= {
        f"{step['action']} {step['kind']} {step['path']}" for step in plan
    }
    busbar(server, "apply", file, "--prune", "--yes")
    names = [queue["name"] for queue in json.loads(busbar(server, "queue", "list", "-o", "json")[0])]
    assert names == ["a", "z"] and json.loads(busbar(server, "topic", "list", "-o", "json")[0]) == []


@pytest.mark.parametrize("form", ["busbar", "emulator", "arm"])
def test_what_is_exported_can_be_applied(server: Busbar, tmp_path: Path, form: str) -> None:
    busbar(server, "apply", written(tmp_path / "Config.json", CONFIG), "--yes")
    file = str(tmp_path / "out.json")
    busbar(server, "export", file, "--format", form)
    assert "--overwrite" in busbar(server, "export", file, code=2)[1]
    assert server.key not in Path(file).read_text()
    if form != "emulator":
        assert " 0 unchanged" not in busbar(server, "apply", file, "--dry-run")[0]
    before = busbar(server, "export")[0]
    busbar(server, "topic", "delete", "news", "--yes")
    busbar(server, "queue", "delete", "a", "--yes")
    busbar(server, "apply", file, "--yes")
    assert json.loads(busbar(server, "export")[0]) == json.loads(before)


def test_taps_and_rules_of_the_namespace_are_exported_and_applied(server: Busbar, tmp_path: Path) -> None:
    busbar(server, "apply", written(tmp_path / "Config.json", CONFIG), "--yes")
    busbar(server, "tap", "create", "a", "archive", "--events", "--max-age", "1d", "--max-size", "unlimited")
    busbar(server, "tap", "create", "a/$DeadLetterQueue", "archive", "--owner", "mine")
    busbar(server, "tap", "create", "news/Subscriptions/eu", "watch", "--from-earliest")
    busbar(server, "tap", "create", "a", "capture-1", "--owner", "capture-1")
    busbar(server, "namespace", "auth-rule", "create", "reader", "--rights", "Listen")
    before = busbar(server, "export")[0]
    assert server.key not in before and "PrimaryKey" not in before and "capture-1" not in before
    secret = tmp_path / "secret.json"
    busbar(server, "export", str(secret), "--keys")
    assert secret.stat().st_mode & 0o777 == 0o600 and server.key in secret.read_text()
    assert "has no keys" in busbar(server, "export", "--keys", "--format", "arm", code=2)[1]
    plan = busbar(server, "apply", str(secret), "--dry-run")[0]
    assert plan.startswith("0 to change"), plan
    keys = busbar(server, "namespace", "auth-rule", "keys", "reader", "-o", "json")[0]

    busbar(server, "queue", "delete", "a", "--yes")
    busbar(server, "topic", "delete", "news", "--yes")
    busbar(server, "namespace", "auth-rule", "delete", "reader", "--yes")
    out, err = busbar(server, "apply", str(secret), "--yes")
    assert {
        "+ create tap archive of a",
        "+ create tap archive of the dead-letter queue of a",
        "+ create tap watch of news/Subscriptions/eu",
        "+ create authorization rule reader of the namespace",
    } <= set(out.splitlines())
    assert json.loads(busbar(server, "export")[0]) == json.loads(before)
    assert busbar(server, "namespace", "auth-rule", "keys", "reader", "-o", "json")[0] == keys, "its keys"
    assert server.key not in out + err

    document = json.loads(before)
    queue = next(one for one in document["UserConfig"]["Namespaces"][0]["Queues"] if one["Name"] == "a")
    queue["Taps"] = [tap for tap in queue["Taps"] if "DeadLetterQueue" not in tap]
    assert (
        "- delete tap archive of the dead-letter queue of a"
        in busbar(server, "apply", written(tmp_path / "less.json", document), "--prune", "--dry-run", code=5)[
            0
        ].splitlines()
    )
    queue["Taps"][0]["Events"] = False
    refused = busbar(server, "apply", written(tmp_path / "other.json", document), "--yes", code=4)[1]
    assert "Events of the tap 'archive' is fixed at creation" in refused and "delete the tap first" in refused
    busbar(server, "namespace", "auth-rule", "renew", "reader", "--key", "primary")
    out, _ = busbar(server, "apply", str(secret), "--yes")
    assert "      Keys: others -> those of the file" in out.splitlines()
    assert busbar(server, "namespace", "auth-rule", "keys", "reader", "-o", "json")[0] == keys


def test_keys_of_a_file_come_into_force_last(tmp_path: Path) -> None:
    """The file has another key for the rule that the command itself uses, and more to do beside it."""
    with serving({"q": {}}) as one:
        document = json.loads(busbar(one, "export", "--keys")[0])
        (rule,) = document["Busbar"]["AuthorizationRules"]
        rule["PrimaryKey"] = "another key of this rule"
        document["Busbar"]["AuthorizationRules"].insert(0, {"Name": "other", "Rights": ["Send"]})
        document["UserConfig"]["Namespaces"][0]["Queues"][0]["Taps"] = [{"Name": "t"}]
        file = written(tmp_path / "keys.json", document)
        _, err = busbar(one, "apply", file, "--yes")
        assert [line.split()[-4:] for line in err.splitlines()][-2] == [
            rule["Name"],
            "of",
            "the",
            "namespace",
        ]
        assert "3 changes carried out" in err
        assert busbar(one, "apply", file)[0].startswith("0 to change"), "and the new key is in force"


def test_an_exported_file_starts_another_namespace(server: Busbar, tmp_path: Path) -> None:
    busbar(server, "apply", written(tmp_path / "Config.json", CONFIG), "--yes")
    busbar(server, "tap", "create", "z", "kept", "--max-age", "2d")
    busbar(server, "namespace", "auth-rule", "create", "watcher", "--rights", "Listen")
    file = str(tmp_path / "exported.json")
    busbar(server, "export", file)
    with serving(config=Path(file).read_text()) as second:
        here, there = (json.loads(busbar(one, "export")[0]) for one in (server, second))
        assert there["UserConfig"] == here["UserConfig"]
        assert "'watcher' has no key" in second.error_text
        assert (
            "+ create authorization rule watcher of the namespace"
            in busbar(second, "apply", file, "--yes")[0]
        )
        assert json.loads(busbar(second, "export")[0]) == here


def test_files_that_cannot_be_used_are_refused(server: Busbar, tmp_path: Path) -> None:
    premium = json.loads(json.dumps(TEMPLATE))
    premium["resources"][0]["sku"]["name"] = "Premium"
    bad = json.loads(json.dumps(CONFIG))
    bad["UserConfig"]["Namespaces"][0]["Queues"][0]["Properties"]["LockDuration"] = "soon"
    for value, code, problem in (
        ([], 2, "not a JSON object"),
        ({"a": 1}, 2, "neither a Config.json"),
        (bad, 2, "Queues[0].Properties.LockDuration is 'soon'"),
        (TEMPLATE, 2, "parameter 'sessions' has no value"),
    ):
        assert (
            problem in busbar(server, "apply", written(tmp_path / "bad.json", value), "--yes", code=code)[1]
        )
    file = written(tmp_path / "premium.json", premium)
    assert "is for the tier Premium" in busbar(server, "apply", file, "-p", "sessions=true", code=4)[1]
    assert "cannot be read" in busbar(server, "apply", str(tmp_path / "none.json"), code=2)[1]


def test_a_pipe_and_closed_input(server: Busbar) -> None:
    command = [sys.executable, "-m", "busbar", "apply", "-", "--dry-run", "--data", str(server.data)]
    exported = busbar(server, "export")[0]
    done = subprocess.run(command, input=exported, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 and done.stdout.startswith("0 to change"), done.stderr
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, timeout=30, check=False
    )
    assert closed.returncode == 2 and closed.stderr.count("\n") == 1, closed.stderr
