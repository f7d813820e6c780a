"""Messages in a real browser as a person mends them: looking, sending, triage of dead letters, purging, sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient
from playwright.sync_api import Page, expect

from harness.serving import Busbar

pytestmark = pytest.mark.timeout(120)

HOSTILE = "</pre><img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def client(server: Busbar) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as found:
        yield found


def send(client: ServiceBusClient, queue: str, *messages: ServiceBusMessage) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([*messages])


def dead_letter(client: ServiceBusClient, queue: str, reasons: dict[str, str]) -> None:
    """Dead-letter the messages of a queue, by their ids, with these reasons."""
    with client.get_queue_receiver(queue) as receiver:
        for _ in reasons:
            (message,) = receiver.receive_messages(1, 10)
            receiver.dead_letter_message(
                message, reason=reasons[message.message_id or ""], error_description=HOSTILE
            )


def bodies(
    client: ServiceBusClient, queue: str, sub_queue: ServiceBusSubQueue | None = None
) -> dict[str, str]:
    """The bodies of all messages, by their ids."""
    with client.get_queue_receiver(queue, sub_queue=sub_queue) as receiver:
        return {message.message_id or "": str(message) for message in receiver.peek_messages(100)}


@pytest.mark.req("U27")
def test_a_message_is_looked_at_and_stays_as_it_was(
    page: Page, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    admin.create_queue("looked-at")
    document = ServiceBusMessage(json.dumps({"total": 12.50, "note": HOSTILE}), message_id="document")
    strange = ServiceBusMessage(
        b"\x00\xff" + HOSTILE.encode(),
        message_id=HOSTILE,
        subject=HOSTILE,
        application_properties={HOSTILE: HOSTILE, "count": 5},
    )
    send(client, "looked-at", document, strange, *(ServiceBusMessage(f"body {n}") for n in range(60)))
    page.goto("/queue?name=looked-at")
    page.get_by_role("link", name="Messages", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="after →").click()
    expect(page.locator("tbody tr")).to_have_count(12)
    page.get_by_label("From number").fill("62")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="62", exact=True).click()
    expect(page.get_by_label("Body", exact=True)).to_have_text("body 59")

    page.goto("/queue/messages?name=looked-at")
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_label("Body", exact=True)).to_contain_text('"total": 12.5')
    page.get_by_role("link", name="Hex").click()
    expect(page.get_by_label("Body", exact=True)).to_contain_text("00000000  7b 22 74 6f 74 61 6c 22")
    page.goto("/queue/message?name=looked-at&number=2")
    expect(page.get_by_label("Body", exact=True)).to_contain_text(
        "00 ff 3c 2f 70 72 65 3e"
    )  # no text: its bytes
    fields = page.locator("dl > div")
    expect(fields.filter(has_text="Subject")).to_contain_text(HOSTILE)
    expect(fields.filter(has_text=f"{HOSTILE}{HOSTILE}")).to_have_count(1)
    assert page.evaluate("document.images.length") == 0
    with client.get_queue_receiver("looked-at") as receiver:
        assert {message.delivery_count for message in receiver.peek_messages(100)} == {0}


@pytest.mark.req("U27")
def test_a_message_is_sent_from_a_form_and_from_a_file(
    page: Page, admin: ServiceBusAdministrationClient, client: ServiceBusClient, tmp_path: Path
) -> None:
    admin.create_queue("written")
    page.goto("/queue?name=written")
    page.get_by_role("link", name="Send").click()
    page.get_by_label("Body", exact=True).fill(f"two\nlines {HOSTILE}")
    page.get_by_label("Message id").fill("by-hand")
    page.get_by_label("Subject").fill("greeting")
    page.get_by_label("Application properties").fill('region=eu\namount=5\nzip="04109"')
    page.get_by_label("Time to live").fill("soon")
    page.get_by_role("button", name="Send message").click()
    expect(page.get_by_role("alert")).to_contain_text("'soon' is not a duration")
    page.get_by_label("Time to live").fill("1h")
    page.get_by_role("button", name="Send message").click()
    expect(page.get_by_role("status")).to_have_text("The message was sent.")

    file = tmp_path / "body.bin"
    file.write_bytes(bytes(range(256)) * 400)
    page.get_by_label("Body from a file").set_input_files(file)
    page.get_by_label("Enqueue at").fill("+3600")
    page.get_by_role("button", name="Send message").click()
    expect(page.get_by_role("status")).to_be_visible()
    with client.get_queue_receiver("written") as receiver:
        first, second = receiver.peek_messages(10)
    assert (str(first), first.message_id, first.subject) == (f"two\nlines {HOSTILE}", "by-hand", "greeting")
    assert first.application_properties == {b"region": b"eu", b"amount": 5, b"zip": b"04109"}
    assert b"".join(second.body) == file.read_bytes()
    page.goto("/queue/messages?name=written&lane=scheduled")
    expect(page.locator("tbody tr")).to_have_count(1)


@pytest.mark.req("U27")
def test_dead_letters_are_mended_resubmitted_and_deleted(
    page: Page, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    admin.create_queue("broken")
    reasons = {"a": "BadAddress", "b": "NoStock", "c": "NoStock", "d": "NoStock", "e": HOSTILE}
    send(
        client,
        "broken",
        *(ServiceBusMessage(f"{id} {HOSTILE}", message_id=id, subject="order") for id in reasons),
    )
    dead_letter(client, "broken", reasons)
    page.goto("/queue?name=broken")
    page.get_by_role("link", name="Dead letters").click()
    groups = page.locator("section").filter(has=page.get_by_role("heading", name="By reason and source"))
    expect(groups.locator("tbody tr").first).to_contain_text("NoStock")
    expect(groups.locator("tbody tr")).to_have_count(3)

    page.get_by_role("link", name="Edit and resubmit message 1").click()
    expect(page.get_by_label("Body", exact=True)).to_have_value(f"a {HOSTILE}")
    page.get_by_label("Body", exact=True).fill("mended")
    page.get_by_label("Application properties").fill("mended=true")
    page.get_by_label("Message id of the copy").select_option("The same")
    page.get_by_role("button", name="Send the copy").click()
    expect(page.get_by_role("status")).to_have_text("1 of 1 dead letters resubmitted.")
    assert bodies(client, "broken") == {"a": "mended"}

    page.get_by_label("Select message 2").check()
    page.get_by_label("Select message 5").check()
    page.get_by_role("button", name="Delete selected").click()
    expect(page.get_by_role("heading", name="Delete 2 dead letters?")).to_be_visible()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("2 of 2 dead letters deleted.")
    groups.get_by_role("link", name="Resubmit").click()
    expect(page.get_by_role("heading", name="Resubmit 2 dead letters with “NoStock”?")).to_be_visible()
    page.get_by_label("Send to").fill("nowhere")
    page.get_by_role("button", name="Resubmit").click()
    expect(page.get_by_role("alert")).to_contain_text("nowhere")
    page.get_by_label("Send to").fill("")
    page.get_by_role("button", name="Resubmit").click()
    expect(page.get_by_role("status")).to_have_text("2 of 2 dead letters resubmitted.")
    expect(page.get_by_text("There are no dead letters.")).to_be_visible()
    assert sorted(bodies(client, "broken").values()) == [f"c {HOSTILE}", f"d {HOSTILE}", "mended"]
    assert bodies(client, "broken", ServiceBusSubQueue.DEAD_LETTER) == {}


@pytest.mark.req("U27")
def test_a_purge_asks_for_the_name_and_shows_its_progress(
    page: Page, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    admin.create_queue("full/of it".replace(" ", "-"))
    send(client, "full/of-it", *(ServiceBusMessage("x") for _ in range(30)))
    page.goto("/queue/messages?name=full/of-it")
    page.get_by_role("link", name="Purge").click()
    page.get_by_label("Type the name of the queue").fill("another")
    page.get_by_role("button", name="Delete the messages").click()
    expect(page.get_by_role("alert")).to_contain_text("“another” is not the name")
    assert admin.get_queue_runtime_properties("full/of-it").active_message_count == 30
    page.get_by_label("Type the name of the queue").fill("full/of-it")
    page.get_by_role("button", name="Delete the messages").click()
    expect(page.get_by_role("status")).to_have_text("30 messages were deleted.")
    assert admin.get_queue_runtime_properties("full/of-it").active_message_count == 0


@pytest.mark.req("U27")
def test_sessions_are_shown_held_and_released(
    page: Page, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    admin.create_queue("ordered", requires_session=True)
    sessions = ("plain", HOSTILE)
    send(client, "ordered", *(ServiceBusMessage("x", session_id=sessions[n % 2]) for n in range(4)))
    page.goto("/queue?name=ordered")
    page.get_by_role("link", name="Sessions").click()
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.get_by_role("link", name="plain", exact=True).click()
    expect(page.locator("dl")).to_contain_text("no client")
    page.get_by_role("button", name="Accept and hold").click()
    expect(page.get_by_role("status")).to_contain_text("The console holds the session")
    with pytest.raises(ServiceBusError):
        client.get_queue_receiver("ordered", session_id="plain", max_wait_time=2).receive_messages(1, 2)
    page.get_by_label("State", exact=True).fill(f"step 2 {HOSTILE}")
    page.get_by_role("button", name="Set state").click()
    expect(page.get_by_role("status")).to_have_text("The state was changed.")
    expect(page.get_by_label("State", exact=True)).to_have_value(f"step 2 {HOSTILE}")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_role("status")).to_have_text("The session was released.")
    with client.get_queue_receiver("ordered", session_id="plain", max_wait_time=10) as receiver:
        assert receiver.session.get_state() == f"step 2 {HOSTILE}".encode()
        page.reload()
        expect(page.locator("dl > div").filter(has_text="Held until")).to_be_visible()
        page.get_by_role("button", name="Accept and hold").click()
        expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("link", name="Its messages").click()
    expect(page.locator("tbody tr")).to_have_count(2)


def test_all_pages_fit_a_phone_and_a_tablet(
    page: Page, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    admin.create_queue("narrow")
    send(client, "narrow", ServiceBusMessage("x" * 500, message_id="m" * 120, subject="s" * 100))
    dead_letter(client, "narrow", {"m" * 120: "r" * 300})
    paths = [
        f"/queue/{path}name=narrow"
        for path in (
            "messages?lane=dead-letter&",
            "message?lane=dead-letter&number=1&",
            "message?lane=dead-letter&number=1&view=hex&",
            "dead-letters?",
            "mend?number=1&",
            "send?",
            "purge?",
            "edit?",
            "access?",
        )
    ]
    for path in (*paths, "/", "/stores", "/taps", "/connections", "/access"):
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        for width in (340, 800, 980):
            page.set_viewport_size({"width": width, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (path, width)
        assert page.get_by_role("alert").count() == 0, path
