"""What management takes that looks odd: names whose segments begin and end with marks, and destinations that cannot work."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from harness.serving import Busbar
from tests.interop.administration import Administration
from tests.interop.azure_sdk import Azure, take_one, text_of
from tests.interop.http_runtime import Http

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]


@pytest_asyncio.fixture(params=["sync", "async"], loop_scope="session")
async def admin(request: pytest.FixtureRequest, broker: Busbar) -> AsyncIterator[Administration]:
    client = Administration(broker, asynchronous=request.param == "async")
    yield client
    await client.close()


@pytest.mark.req("U22")
async def test_segments_may_begin_and_end_with_marks(
    admin: Administration, azure_async: Azure, http: Http
) -> None:
    """Over every protocol: nothing is taken for a place in a tree of files or of URLs."""
    paths = ["txt/.-_123", "txt./.hidden", "txt-/_/-123", "txt.../...123"]
    for path in paths:
        assert (await admin.create_queue(path)).name == path
        assert (await admin.get_queue(path)).name == path
        assert (await http.send(path, b"over HTTP")).status == 201
        receiver, sender = azure_async.receiver(path), azure_async.sender(path)
        message = await take_one(receiver)
        assert text_of(message) == "over HTTP"
        await receiver.complete_message(message)
        await sender.send_messages(ServiceBusMessage("over AMQP"))
        assert (await http.take(path)).body == b"over AMQP"
    assert set(paths) <= {queue.name for queue in await admin.list_queues()}
    topic = "txt/.topic-_1"
    await admin.create_topic(topic)
    await admin.create_subscription(topic, "s.-_1")
    assert (await admin.get_subscription(topic, "s.-_1")).name == "s.-_1"
    await admin.delete_topic(topic)
    for path in paths:
        await admin.delete_queue(path)
        with pytest.raises(ResourceNotFoundError):
            await admin.get_queue(path)


@pytest.mark.parametrize("name", [".txt", "txt.", "-txt", "_txt/a", "a/txt_", "a//b", "a/%2e%2e/b", "a b"])
async def test_what_is_no_name_is_refused(admin: Administration, name: str) -> None:
    with pytest.raises(HttpResponseError) as refusal:
        await admin.create_queue(name)
    assert refusal.value.status_code in (400, 404)


@pytest.mark.req("U22")
async def test_destinations_are_taken_as_the_service_takes_them(
    admin: Administration, azure_async: Azure
) -> None:
    """To itself, and from what requires sessions. Receivers of what forwards are told so."""
    queue = await admin.create_queue("itself")
    queue.forward_to = "itself"
    await admin.update_queue(queue)
    assert (await admin.get_queue("itself")).forward_to.endswith("/itself")
    sessions = await admin.create_queue("forwards-sessions", requires_session=True, forward_to="itself")
    assert sessions.requires_session and sessions.forward_to.endswith("/itself")
    with pytest.raises(HttpResponseError, match="no queue or topic"):
        await admin.create_queue("not-there-yet", forward_to="not-there-yet")
    with pytest.raises(ServiceBusError, match="auto-forwarding enabled"):
        await azure_async.receiver("itself").opened()
    await admin.delete_queue("forwards-sessions")
    await admin.delete_queue("itself")
