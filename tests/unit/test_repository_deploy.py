"""The files of deploy/: what they run is what the command understands, and their ports and paths agree with each other."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from busbar.app.config import parse_config
from busbar.cli.main import app
from busbar.gateway.http.probes import LIVE, READY
from busbar.store.postgresql.address import parse_address

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "systemd" / "busbar.service").read_text()
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "busbar.yaml").read_text()))

PORTS = {"amqp": 5672, "amqps": 5671, "http": 5300, "node": 5680}
NODES = {name: service for name, service in COMPOSE["services"].items() if name.startswith("node-")}


def manifest(kind: str, name: str = "busbar") -> dict[str, Any]:
    (found,) = [one for one in MANIFESTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return dict(found)


def container() -> dict[str, Any]:
    (found,) = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def kubernetes_arguments() -> list[str]:
    return [argument.replace("$(NAME)", "busbar-0") for argument in container()["args"]]


def unit_line() -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.M)
    return shlex.split(line)


def image_command() -> list[str]:
    (line,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.M)
    return list(json.loads(line))


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The parameters of `busbar serve` that a command line sets. Raises what the command would print."""
    assert arguments[0] == "serve"
    command = typer.main.get_command(app)
    found = command.commands["serve"]  # type: ignore[attr-defined]  # the command is a group
    with found.make_context("serve", arguments[1:]) as context:
        return dict(context.params)


SINGLE = {"systemd": unit_line()[1:], "image": image_command()}
CLUSTER = {name: service["command"] for name, service in NODES.items()} | {
    "kubernetes": kubernetes_arguments()
}


@pytest.mark.parametrize("name", SINGLE)
def test_the_command_line_of_one_busbar_is_understood(name: str) -> None:
    assert parsed(SINGLE[name])["data"] in (Path("/var/lib/busbar"), Path("/data"))


@pytest.mark.parametrize("name", CLUSTER)
def test_the_command_line_of_a_node_is_understood(name: str) -> None:
    found = parsed(CLUSTER[name])
    assert found["node_port"] == PORTS["node"]
    assert found["node"] == found["host"].partition(".")[0], "other nodes reach it by its name"
    for number, url in enumerate(found["stores"]):
        assert parse_address(url, "any").schema == f"store_{number}"
    assert parse_address(found["catalogue"], "any").schema == "catalogue"
    assert "password" not in found["catalogue"] and found["port"] == PORTS["amqp"]


def test_nodes_agree_on_the_databases() -> None:
    shared = {
        tuple(argument for argument in arguments if argument.startswith(("--catalogue", "--stores")))
        for arguments in CLUSTER.values()
    }
    assert len(shared) == 1
    hosts = {parse_address(url.partition("=")[2], "any").dsn for url in next(iter(shared))}
    assert len(hosts) == 2, "two servers"


def test_no_command_line_has_a_secret() -> None:
    for arguments in [*SINGLE.values(), *CLUSTER.values()]:
        assert not [argument for argument in arguments if argument.startswith("--key")]


def test_the_configuration_is_one() -> None:
    text = (DEPLOY / "Config.json").read_text()
    assert [queue["Name"] for queue in json.loads(text)["UserConfig"]["Namespaces"][0]["Queues"]] == [
        "orders"
    ]
    parse_config(text, "deploy/Config.json")


# ---- systemd ----


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("true")
    assert program is not None
    unit = tmp_path / "busbar.service"
    unit.write_text(UNIT.replace(unit_line()[0], program))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert [line for line in found.stderr.splitlines() if "busbar.service" in line] == []


def test_the_unit_logs_no_key_and_has_its_directories() -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.M))
    assert settings["StandardOutput"] == "null", "the line `ready` has the key"
    assert settings["Type"] == "notify"
    assert (settings["StateDirectory"], settings["ConfigurationDirectory"]) == ("busbar", "busbar")
    assert settings["UMask"] == "0077" and settings["StateDirectoryMode"] == "0700"


# ---- containers ----


def test_the_image_is_built_of_what_is_there() -> None:
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            kept = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
            assert f"!{source}" in kept, f"{source} is not sent to the builder"
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.M)
    exposed = re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.M)[0]
    assert sorted(map(int, exposed.split())) == sorted(PORTS.values())
    health = re.findall(r"HEALTHCHECK.*\n\s+CMD (\[.*\])$", DOCKERFILE, re.M)[0]
    assert f":{PORTS['http']}/{LIVE}" in json.loads(health)[-1]


def test_only_the_server_in_a_container_is_silenced() -> None:
    entrypoint = (DEPLOY / "docker" / "entrypoint").read_text()
    assert re.search(r'"\$1" = serve.*?exec busbar "\$@" >/dev/null', entrypoint, re.S)
    assert 'ENTRYPOINT ["busbar-entrypoint"]' in DOCKERFILE


def test_compose_has_three_nodes_and_two_databases() -> None:
    assert len(NODES) == 3
    services = COMPOSE["services"]
    volumes = set()
    for name, service in services.items():
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                assert (DEPLOY / "docker" / source).resolve().exists()
                assert target == str(parsed_config(name))
            else:
                volumes.add(source)
    assert volumes == {*COMPOSE["volumes"]}
    published = [port for service in NODES.values() for port in service["ports"]]
    assert len({*published}) == 3
    assert all(port.startswith("127.0.0.1:") and port.endswith(":5672") for port in published)
    for name, service in NODES.items():
        assert service["hostname"] == name, "nodes find each other by these names"
        assert {*service["depends_on"]} == {*services} - {*NODES}


def parsed_config(name: str) -> Path:
    (argument,) = [one for one in NODES[name]["command"] if one.startswith("--config=")]
    return Path(argument.partition("=")[2])


# ---- Kubernetes ----


def test_services_lead_to_ports_that_there_are() -> None:
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == PORTS
    template = manifest("StatefulSet")["spec"]["template"]
    for service in (manifest("Service"), manifest("Service", "busbar-nodes")):
        assert service["spec"]["selector"] == template["metadata"]["labels"]
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    assert manifest("StatefulSet")["spec"]["serviceName"] == "busbar-nodes"
    nodes = manifest("Service", "busbar-nodes")["spec"]
    assert nodes["clusterIP"] == "None" and nodes["publishNotReadyAddresses"] is True
    budget = manifest("PodDisruptionBudget")["spec"]
    assert budget["selector"] == manifest("StatefulSet")["spec"]["selector"] and budget["maxUnavailable"] == 1


def test_probes_ask_for_what_busbar_answers() -> None:
    found = {kind: container()[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}
    paths = {kind: probe["httpGet"]["path"] for kind, probe in found.items()}
    assert paths == {"startup": f"/{READY}", "readiness": f"/{READY}", "liveness": f"/{LIVE}"}
    assert {probe["httpGet"]["port"] for probe in found.values()} == {"http"}


def test_volumes_and_secrets_are_there() -> None:
    spec = manifest("StatefulSet")["spec"]
    volumes = {one["name"] for one in spec["template"]["spec"]["volumes"]}
    volumes |= {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
    mounts = {one["name"]: one["mountPath"] for one in container()["volumeMounts"]}
    assert {*mounts} == volumes
    arguments = dict(one.lstrip("-").partition("=")[::2] for one in container()["args"][1:])
    assert arguments["data"].startswith(f"{mounts['data']}/"), "a directory of its own, which is private"
    assert arguments["config"].startswith(f"{mounts['config']}/")
    variables = {one["name"] for one in container()["env"]}
    used = {name for argument in container()["args"] for name in re.findall(r"\$\((\w+)\)", argument)}
    assert used <= variables and {"BUSBAR_KEY", "PGPASSWORD"} <= variables
    security = spec["template"]["spec"]["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in DOCKERFILE
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 5 + 30
