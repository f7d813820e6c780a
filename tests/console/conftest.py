"""For each file a running Busbar, a console, whose printed address works once, and a browser if it needs one.

Playwright's synchronous interface has an event loop running under it: no test here is a coroutine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from harness.serving import Busbar
from tests.console.console_process import ConsoleProcess, console_for

CHROMIUM = Path(sys.prefix) / "share" / "chromium"
"""Where `make setup` unpacks it (tests/console/browser)."""
expect.set_options(timeout=30_000)  # a busy machine may take its time


@pytest.fixture(scope="session")
def server_mark() -> pytest.Mark:
    return pytest.mark.server({"orders": {}}, key="a+secret/that-is=never-shown", checked=True).mark


@pytest.fixture(scope="module")
def admin(server: Busbar) -> ServiceBusAdministrationClient:
    """The Azure SDK's view of the namespace."""
    return ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.data / "tls" / "ca.pem"), retry_total=0
    )


@pytest.fixture(scope="module")
def console(server: Busbar) -> Iterator[ConsoleProcess]:
    with console_for(server.data) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A real browser."""
    program = os.environ.get("BUSBAR_CHROMIUM") or str(CHROMIUM / "chromium")
    assert Path(program).is_file(), "`make setup` unpacks a browser; BUSBAR_CHROMIUM names another"
    environment = {"LD_LIBRARY_PATH": str(CHROMIUM / "al2023" / "lib"), "FONTCONFIG_PATH": str(CHROMIUM)}
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=program,
            env={**os.environ, **(environment if program.startswith(str(CHROMIUM)) else {})},
            args=["--no-zygote"],  # fewer processes to start
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def browser(chromium: Browser, console: ConsoleProcess) -> BrowserContext:
    """A browser that is signed in by the address that the console printed."""
    context = chromium.new_context(base_url=console.base, viewport={"width": 1100, "height": 800})
    page = context.new_page()
    page.goto(console.sign_in)
    page.wait_for_url(f"{console.base}/")
    page.close()
    return context


@pytest.fixture
def page(browser: BrowserContext) -> Iterator[Page]:
    """A page on which nothing may fail: no script, no style or script that the policy of content forbids."""
    page = browser.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda said: failures.append(said.text) if "Content Security" in said.text else None)
    yield page
    page.close()
    assert failures == []
