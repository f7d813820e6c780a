"""A person's way through the console, by the labels on its pages."""

from __future__ import annotations

from playwright.sync_api import Page, expect


def create_queue(page: Page, name: str, *ticked: str) -> None:
    page.goto("/")
    page.get_by_role("link", name="New queue").click()
    page.get_by_label("Name", exact=True).fill(name)
    for label in ticked:
        page.get_by_label(label).check()
    page.get_by_role("button", name="Create queue").click()
    expect(page.get_by_role("status")).to_have_text("The queue was created.")
