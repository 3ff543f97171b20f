"""Where our own server is found, and which upstreams are it."""

import pytest

from proxy.upstream.own_server import leads_back, name_address


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8484"),
        ("0.0.0.0", "http://127.0.0.1:8484"),
        ("::", "http://[::1]:8484"),
        ("fd00::1", "http://[fd00::1]:8484"),
        ("proxy.example", "http://proxy.example:8484"),
    ],
)
def test_a_server_is_found_where_it_listens(host: str, address: str) -> None:
    assert name_address(host, 8484) == address


@pytest.mark.parametrize(
    ("base_url", "address", "is_own"),
    [
        ("http://127.0.0.1:8484/v1", "127.0.0.1", True),
        ("https://127.0.0.1:8484", "127.0.0.1", True),
        ("http://localhost:8484/v1", "127.0.0.1", True),
        ("http://[::1]:8484/v1", "::1", True),
        ("http://0.0.0.0:8484/v1", "127.0.0.1", True),
        ("http://127.0.0.1:8484/v1", "0.0.0.0", True),
        ("http://127.9.9.9:8484/v1", "0.0.0.0", True),
        ("http://0.0.0.0:8484/v1", "0.0.0.0", True),
        ("http://127.0.0.1:8485/v1", "127.0.0.1", False),
        ("http://127.0.0.2:8484/v1", "127.0.0.1", False),
        ("http://[::1]:8484/v1", "127.0.0.1", False),
        ("http://192.0.2.1:8484/v1", "0.0.0.0", False),
        ("http://nobody.invalid:8484/v1", "127.0.0.1", False),
        ("https://api.openai.com/v1", "127.0.0.1", False),
    ],
)
def test_an_upstream_that_is_this_server_is_seen(base_url: str, address: str, *, is_own: bool) -> None:
    assert leads_back(base_url, address, 8484) == is_own
