"""Where requests go: paths under a base URL, tricks in them, and upstreams that are this server."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.errors import BadRequest
from proxy.upstream.origin import Origin, UpstreamTarget, leads_back, map_target, name_address, parse_base, parse_proxy


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("https://api.openai.com/v1", Origin("api.openai.com", 443, True), b"/v1"),
        ("https://api.openai.com/v1/", Origin("api.openai.com", 443, True), b"/v1"),
        ("http://localhost:11434", Origin("localhost", 11434, False), b""),
        ("http://h", Origin("h", 80, False), b""),
        ("https://g.example/v1beta/openai/", Origin("g.example", 443, True), b"/v1beta/openai"),
        ("http://[::1]:8000/v1", Origin("::1", 8000, False), b"/v1"),
    ],
)
def test_a_base_url_is_an_origin_and_a_path(url: str, origin: Origin, path: bytes) -> None:
    assert parse_base(url) == (origin, path)


@pytest.mark.parametrize("url", ["", "api.openai.com", "ftp://h/v1", "https://", "http://h:99999/", "http://h/\xe9"])
def test_anything_else_is_no_base_url(url: str) -> None:
    with pytest.raises(ValueError):
        parse_base(url)


@pytest.mark.parametrize(
    ("origin", "field"),
    [
        (Origin("h", 443, True), b"h"),
        (Origin("h", 80, True), b"h:80"),
        (Origin("h", 80, False), b"h"),
        (Origin("h", 443, False), b"h:443"),
        (Origin("::1", 8000, False), b"[::1]:8000"),
        (Origin("::1", 80, False), b"[::1]"),
        (Origin("b\xfccher.example", 443, True), b"xn--bcher-kva.example"),
    ],
)
def test_the_host_header_names_the_port_where_it_is_not_the_usual_one(origin: Origin, field: bytes) -> None:
    assert origin.host_header == field


@pytest.mark.parametrize(
    ("user", "told"), [("", b""), ("u@", b"u:"), ("u:p@", b"u:p"), ("u%40x:a%2Fb@", b"u@x:a/b"), ("u:a:b@", b"u:a:b")]
)
def test_a_proxy_is_told_the_user_and_the_password_of_its_url(user: str, told: bytes) -> None:
    found = parse_proxy(f"http://{user}proxy.example:3128/")
    assert found is not None
    assert found.origin == Origin("proxy.example", 3128, False)
    assert found.fields == (b"proxy-authorization: Basic %s\r\n" % b64encode(told) if told else b"")


@pytest.mark.parametrize(
    ("base", "target", "mapped", "is_under_base"),
    [
        (b"/v1", b"/v1/chat/completions", b"/v1/chat/completions", True),
        (b"/v1beta/openai", b"/v1/models?a=b&c", b"/v1beta/openai/models?a=b&c", True),
        (b"/v1beta/openai", b"/v1beta/openai/models", b"/v1beta/openai/models", True),
        (b"/v1beta/openai", b"/v1beta/openai", b"/v1beta/openai", True),
        (b"/v1beta/openai", b"/v1beta/openaix", b"/v1beta/openaix", False),
        (b"/v1", b"/v1", b"/v1", True),
        (b"/v1", b"/v1x/y", b"/v1x/y", False),
        (b"/v1", b"/", b"/", False),
        (b"/v1", b"/v2/chat", b"/v2/chat", False),
        (b"/v1", b"/%76%31/x", b"/%76%31/x", False),
        (b"", b"/v1/chat", b"/v1/chat", True),
        (b"", b"/anything", b"/anything", True),
        (b"/v1", b"//v1/x", b"//v1/x", False),
        (b"/v1", b"/v1/a?next=/../x;y%2f", b"/v1/a?next=/../x;y%2f", True),
        (b"/v1", b"/v1/a..b/.hidden/...", b"/v1/a..b/.hidden/...", True),
        (b"/v1", b"/v1/files/100%25%20a%3Bb%253Bc%zz%C3%A4", b"/v1/files/100%25%20a%3Bb%253Bc%zz%C3%A4", True),
    ],
)
def test_a_path_goes_where_an_sdk_would_send_it(base: bytes, target: bytes, mapped: bytes, is_under_base: bool) -> None:
    assert map_target(base, target) == UpstreamTarget(mapped, is_under_base)


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/../admin",
        b"/v1/..",
        b"/./v1",
        b"/v1/.",
        b"/..",
        b"/v1/%2e%2e/admin",
        b"/v1/%2E./admin",
        b"/v1/.%2e/admin",
        b"/v1/%252e%252e/admin",
        b"/v1/%252E./admin",
        b"/v1/%25252e%25252e/admin",
        b"/v1/%25%32%65%25%32%65/admin",
        b"/v1%252fadmin",
        b"/v1/%255Cadmin",
        b"/v1/%2525252525252525",
        b"/v1%2fadmin",
        b"/v1/%2Fadmin",
        b"/v1/..%5cadmin",
        b"/v1/..\\admin",
        b"/v1/..;/admin",
        b"/v1/a b",
        b"/v1/a\tb",
        b"/v1/a\x7f",
        b"v1/models",
        b"http://other/v1/models",
        b"*",
        b"",
        b"?a=/v1",
    ],
)
@pytest.mark.parametrize("base", [b"", b"/v1"])
def test_a_path_that_could_mean_another_is_refused(base: bytes, target: bytes) -> None:
    with pytest.raises(BadRequest, match="plain form"):
        map_target(base, target)


_behind = st.text("/.v1a%25eEfFcC;\\?", max_size=20).map(str.encode)
_paths = st.builds(bytes.__add__, st.sampled_from([b"/", b"/v1", b"/v1/", b"/v1/a/"]), _behind)


@given(_paths)
def test_a_key_never_leaves_the_base_whichever_way_the_path_is_normalised(target: bytes) -> None:
    try:
        mapped = map_target(b"/v1", target)
    except BadRequest:
        return
    segments: list[bytes] = []
    for segment in mapped.path.partition(b"?")[0].split(b"/")[1:]:
        if segment == b"..":
            del segments[-1:]
        elif segment != b".":
            segments.append(segment)
    if mapped.is_under_base:
        assert segments[0] == b"v1"


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
