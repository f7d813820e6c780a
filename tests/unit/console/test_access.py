"""Tokens work once, browsers are bounded, and hosts are loopback."""

from __future__ import annotations

import pytest

from busbar.console.access import BROWSERS, Access, AccessDenied, check_host


def test_a_token_signs_in_once() -> None:
    access = Access()
    token, other = access.new_token(), access.new_token()
    cookie = access.sign_in(token)
    assert cookie is not None and cookie != token
    assert access.sign_in(token) is None
    assert access.sign_in("") is None
    assert access.sign_in("\udc80") is None
    assert access.sign_in(other) is not None


def test_each_browser_has_a_csrf_token_of_its_own() -> None:
    access = Access()
    one, two = (access.sign_in(access.new_token()) for _ in range(2))
    assert one is not None and two is not None
    assert access.csrf(one) == access.csrf(one) != access.csrf(two)
    assert Access().csrf(one) != access.csrf(one)


def test_browsers_are_bounded() -> None:
    access = Access()
    for _ in range(BROWSERS + 5):
        access.sign_in(access.new_token())
    assert len(access._browsers) == BROWSERS


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1", "127.1.2.3:5380", "[::1]:5380"])
def test_loopback(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize(
    "host", ["", "a.example", "localhost.a.example", "10.0.0.1", "[::]", "[", "0.0.0.0:80", "2130706433"]
)
def test_everything_else(host: str) -> None:
    with pytest.raises(AccessDenied):
        check_host(host)
