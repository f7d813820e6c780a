"""What busbar.client's administration client is refused, and the connections that it keeps."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from busbar.client import (
    NO_RETRY,
    AdministrationClient,
    AlreadyExists,
    ArgumentError,
    BlockingAdministrationClient,
    BusbarClientError,
    CannotConnect,
    NotFound,
    OperationTimeout,
    QueueProperties,
    Retry,
    SharedAccessAuthorizationRule,
    SqlRuleFilter,
    Unauthorized,
)
from harness.serving import Busbar, config_text
from tests.interop import administration_fixtures as fixtures
from tests.interop.administration_fixtures import Face
from tests.interop.azure_sdk import in_thread

admin, name = fixtures.admin, fixtures.name
pytestmark = [pytest.mark.asyncio(loop_scope="session"), fixtures.SERVER]


# Errors


async def test_what_exists_and_what_does_not(admin: Face, name: str) -> None:
    await admin.create_queue(f"{name}-queue")
    await admin.create_topic(f"{name}-topic")
    with pytest.raises(AlreadyExists, match=f"{name}-queue"):
        await admin.create_queue(f"{name}-queue")
    with pytest.raises(AlreadyExists):
        await admin.create_queue(f"{name}-topic")
    for call in (
        admin.get_queue(f"{name}-none"),
        admin.delete_queue(f"{name}-none"),
        admin.update_queue(QueueProperties(f"{name}-none")),
        admin.get_queue_runtime_properties(f"{name}-none"),
        admin.get_subscription(f"{name}-topic", "none"),
        admin.create_subscription(f"{name}-none", "s"),
        admin.list_subscriptions(f"{name}-none"),
        admin.get_rule(f"{name}-topic", "none", "r"),
    ):
        with pytest.raises(NotFound) as caught:
            await call
        assert "none" in caught.value.text and not caught.value.retryable


async def test_a_queue_is_no_topic(admin: Face, name: str) -> None:
    await admin.create_topic(name)
    for call in (admin.get_queue(name), admin.delete_queue(name), admin.get_queue_runtime_properties(name)):
        with pytest.raises(NotFound, match=f"queue '{name}'"):
            await call
    with pytest.raises(BusbarClientError):
        await admin.update_queue(QueueProperties(name))
    assert (await admin.get_topic(name)).name == name, "it is still there"


async def test_a_bad_value_is_named(admin: Face, name: str) -> None:
    for options, word in (
        ({"lock_duration": timedelta(minutes=6)}, "LockDuration"),
        ({"lock_duration": timedelta(0)}, "LockDuration"),
        ({"lock_duration": timedelta(seconds=-5)}, "LockDuration"),
        ({"lock_duration": "soon"}, "LockDuration"),
        ({"max_size_in_megabytes": 7}, "MaxSizeInMegabytes"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount"),
        ({"status": "Sleeping"}, "Status"),
        ({"user_metadata": "x" * 1025}, "UserMetadata"),
        ({"forward_to": f"{name}-none"}, "none"),
    ):
        with pytest.raises(BusbarClientError, match=word) as caught:
            await admin.create_queue(name, **options)
        assert isinstance(caught.value, ArgumentError | NotFound) and not caught.value.retryable
    wrong: tuple[dict[str, Any], ...] = (
        {"lock_duration": 30},
        {"requires_session": "yes"},
        {"max_delivery_count": True},
        {"lock": 1},
    )
    for typed in wrong:
        with pytest.raises(TypeError, match=next(iter(typed))):
            await admin.create_queue(name, **typed)
    for bad in ("", "/", "$Resources/Queues", "a b"):
        with pytest.raises(ArgumentError):
            await admin.create_queue(bad)
    with pytest.raises(ValueError, match="UserMetadata"):
        await admin.create_queue(name, user_metadata="\x00")
    await admin.create_topic(name)
    await admin.create_subscription(name, "s")
    with pytest.raises(ArgumentError, match="s/t"):
        await admin.create_subscription(name, "s/t")
    with pytest.raises(ArgumentError):
        await admin.create_rule(name, "s", "bad", filter=SqlRuleFilter("a ="))
    with pytest.raises(TypeError, match="filter"):
        await admin.create_rule(name, "s", "bad", filter="a = 1")
    queue = await admin.create_queue(f"{name}-queue")
    with pytest.raises(ArgumentError, match="RequiresSession"):
        await admin.update_queue(queue, requires_session=True)


async def test_keys_decide_what_a_client_may_do(server: Busbar, name: str) -> None:
    root = server.connection_string
    wrong = root.replace(f"SharedAccessKey={server.key}", "SharedAccessKey=wrong")
    listener = root.replace("RootManageSharedAccessKey", "listener").replace(server.key, "first key")
    for connection_string in (wrong, listener):
        async with AdministrationClient.from_connection_string(connection_string) as client:
            for call in (
                client.get_queue("page-000"),
                client.create_queue(name),
                client.delete_queue("page-000"),
            ):
                with pytest.raises(Unauthorized) as caught:
                    await call
                assert "wrong" not in str(caught.value) and "first key" not in str(caught.value)
            assert "wrong" not in repr(client) + repr(client.address)
    async with AdministrationClient.from_connection_string(root) as client:
        assert (await client.get_queue("page-000")).name == "page-000"
        with pytest.raises(NotFound):
            await client.get_queue(name)


async def test_an_entitys_own_key_manages_it_alone(server: Busbar, name: str) -> None:
    async with AdministrationClient.from_connection_string(server.connection_string) as root:
        rule = SharedAccessAuthorizationRule("owner", ["Manage", "Send", "Listen"])
        queue = await root.create_queue(name, authorization_rules=[rule])
    (made,) = queue.authorization_rules
    assert made.primary_key and made.primary_key != made.secondary_key, "the broker generates keys"
    assert made.primary_key not in repr(made)
    own = server.connection_string.replace("RootManageSharedAccessKey", "owner").replace(
        server.key, made.primary_key
    )
    async with AdministrationClient.from_connection_string(f"{own};EntityPath={name}") as owner:
        assert (await owner.get_queue(name)).name == name
        with pytest.raises(Unauthorized):
            await owner.get_queue("page-000")


# Connections


async def test_connections_are_kept_and_shared(server: Busbar) -> None:
    async with AdministrationClient.from_connection_string(server.connection_string) as client:
        for index in range(20):
            await client.get_queue(f"page-{index:03d}")
        assert client.connections_opened == 1
        queues = await asyncio.gather(*(client.get_queue(f"page-{index:03d}") for index in range(100)))
        assert [queue.name for queue in queues] == [f"page-{index:03d}" for index in range(100)]
        assert client.connections_opened <= 8
    with pytest.raises(ValueError, match="closed"):
        await client.get_queue("page-000")


async def test_tls_with_a_trusted_authority(server: Busbar) -> None:
    with_tls = server.connection_string.replace(";UseDevelopmentEmulator=true", "")
    assert with_tls != server.connection_string
    authority = server.data / "tls" / "ca.pem"
    async with AdministrationClient.from_connection_string(with_tls, trust=authority) as client:
        assert (await client.get_queue("page-000")).name == "page-000"
        assert client.address.tls and client.connections_opened == 1
    async with AdministrationClient.from_connection_string(with_tls) as client:
        with pytest.raises(BusbarClientError, match="not trusted") as caught:
            await client.get_queue("page-000")
        assert not caught.value.retryable


async def test_a_restart_in_between(tmp_path: Path) -> None:
    """A kept connection is over; the client notices, and tries again until the broker is back."""
    server = Busbar(tmp_path / "data", config_text({"q": {}})).start()
    try:
        client = AdministrationClient.from_connection_string(
            server.connection_string, retry=Retry(patience=120)
        )
        blocking = BlockingAdministrationClient.from_connection_string(server.connection_string)
        assert (await client.get_queue("q")).name == "q"
        assert (await in_thread(blocking.get_queue, "q")).name == "q"
        await in_thread(server.stop)
        waiting = asyncio.create_task(client.create_queue("later"))
        await asyncio.sleep(0.3)
        await in_thread(server.start)
        assert (await waiting).name == "later"
        assert (await in_thread(blocking.get_queue, "later")).name == "later"
        await client.close()
        await in_thread(blocking.close)
    finally:
        server.stop()
    hasty = AdministrationClient.from_connection_string(server.connection_string, retry=NO_RETRY)
    with pytest.raises(CannotConnect):
        await hasty.create_queue("q")


async def test_every_call_ends_in_time() -> None:
    """A server that accepts and never answers."""
    silent = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    text = (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    )
    try:
        async with AdministrationClient.from_connection_string(text, operation_timeout=0.3) as client:
            for call in (client.get_queue("q"), client.create_queue("q"), client.delete_topic("t")):
                began = asyncio.get_running_loop().time()
                with pytest.raises(OperationTimeout, match=r"0\.3 s"):
                    await call
                assert asyncio.get_running_loop().time() - began < 5
    finally:
        silent.close()
