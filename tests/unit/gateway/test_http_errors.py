"""Errors as HTTP says them, and what a request may be."""

from __future__ import annotations

import logging
from typing import Any
from xml.etree import ElementTree

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from busbar.gateway.http.errors import EntityDeleted, PreconditionFailed, error_response
from busbar.gateway.http.requests import path_of, refuse_large
from busbar.model import errors


@pytest.mark.parametrize(
    ("error", "status", "sub_code"),
    [
        (errors.ArgumentError("x"), 400, "SubCode=40000. "),
        (errors.Unauthorized("x"), 401, "SubCode=40100. "),
        (errors.QuotaExceeded("x"), 403, "SubCode=40300. "),
        (errors.InvalidOperation("x"), 403, "SubCode=40301. "),
        (errors.EntityNotFound("x"), 404, "SubCode=40400. "),
        (errors.MessageLockLost("x"), 404, "SubCode=40400. "),
        (errors.EntityAlreadyExists("x"), 409, "SubCode=40900. "),
        (EntityDeleted("x"), 410, "x"),
        (PreconditionFailed("x"), 412, "x"),
        (errors.MessageSizeExceeded("x"), 413, "SubCode=41300. "),
        (errors.NotImplementedHere("x"), 501, "SubCode=50100. "),
        (errors.ServerBusy("x"), 503, "SubCode=50001. "),
        (errors.InternalError("x"), 500, "SubCode=50000. "),
        (web.HTTPBadRequest(text="x"), 400, "x"),
    ],
)
def test_each_error_has_its_status_and_sub_code(error: Exception, status: int, sub_code: str) -> None:
    response = error_response(error, "node")
    assert response.status == status
    assert isinstance(response.body, bytes)
    told = ElementTree.fromstring(response.body)
    assert told.findtext("Code") == str(status)
    detail = told.findtext("Detail") or ""
    assert detail.startswith(sub_code) and "TrackingId:" in detail


def test_markup_and_control_characters_do_no_harm() -> None:
    response = error_response(errors.ArgumentError("<script>&\x00\ud800\ufffe</Detail>"))
    assert isinstance(response.body, bytes)
    assert "<script>&???</Detail>" in (ElementTree.fromstring(response.body).findtext("Detail") or "")


def test_our_own_fault_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response = error_response(ZeroDivisionError("the secret"))
    assert response.status == 500 and isinstance(response.body, bytes) and b"secret" not in response.body
    assert "the secret" in caplog.text


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/", ""),
        ("/q", "q"),
        ("/a/b/", "a/b"),
        ("/a%2Fb?api-version=2021-05", "a/b"),
        ("/%24Resources/Queues", "$Resources/Queues"),
        ("/q/messages/head?timeout=1", "q/messages/head"),
        ("https://localhost:5672/q/x", "q/x"),
        ("/%C3%A4", "ä"),
    ],
)
def test_paths(raw: str, path: str) -> None:
    assert path_of(_request(raw)) == path


@pytest.mark.parametrize("raw", ["/a/../b", "/a//b", "/%2e", "/a%00", "/a%5cb", "/%80", "/a%7f"])
def test_paths_that_no_entity_has(raw: str) -> None:
    with pytest.raises(errors.ArgumentError):
        path_of(_request(raw))


def test_a_body_is_refused_by_its_announcement() -> None:
    request = _request("/q", headers={"Content-Length": "101"})
    refuse_large(request, 101)
    with pytest.raises(errors.MessageSizeExceeded, match="101 bytes; at most 100"):
        refuse_large(request, 100)


def _request(raw: str, **options: Any) -> web.Request:
    return make_mocked_request("GET", raw, **options)
