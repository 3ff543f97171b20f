"""Headers and targets: forwarding, storing, rate limits."""

import pytest

from proxy.model.exchange import Headers
from proxy.wire import headers
from proxy.wire.headers import (
    OWN_COOKIE,
    RateLimitHeaders,
    accept_identity_only,
    allows_cross_origin,
    drop_beta,
    find_credential,
    find_header,
    forward_request,
    forward_response,
    has_rate_limits,
    is_credential,
    is_loopback,
    list_credentials,
    list_hops,
    read_encoding,
    read_rate_limits,
    redact_target,
    restrict_cross_origin,
    select_for_model_list,
    select_for_own_call,
    select_stored,
    strip_scheme,
)

HOP_BY_HOP = [
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
    *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
]
CREDENTIALS = [b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"]
KNOWN_TO_MATTER = [
    *(b"openai-organization", b"anthropic-version", b"x-ratelimit-remaining-tokens", b"retry-after", b"retry-after-ms"),
    *(b"x-request-id", b"x-should-retry", b"x-stainless-lang"),
]


def field(name: bytes) -> Headers:
    return ((name, b"value"),)


@pytest.mark.parametrize("name", HOP_BY_HOP)
def test_hop_by_hop_fields_go_on_in_neither_direction(name: bytes) -> None:
    assert list(forward_request(field(name))) == []
    assert list(forward_response(field(name))) == []


@pytest.mark.parametrize("forward", [forward_request, forward_response])
def test_fields_that_connection_names_go_on_in_neither_direction(forward: object) -> None:
    headers: Headers = (
        (b"connection", b"close, X-Secret-Hop"),
        (b"x-secret-hop", b"1"),
        (b"connection", b" x-other "),
        (b"x-other", b"2"),
        (b"x-kept", b"3"),
    )
    assert callable(forward)
    assert list(forward(headers)) == [(b"x-kept", b"3")]


@pytest.mark.parametrize("name", [b"host", b"content-length", b"expect", b"x-palimpsest-session", b"x-palimpsest-mode"])
def test_what_the_sender_sets_anew_and_what_is_ours_stays_here(name: bytes) -> None:
    assert list(forward_request(field(name))) == []


@pytest.mark.parametrize("name", [*KNOWN_TO_MATTER, *CREDENTIALS, b"x-grok-conv-id", b"x-unheard-of", b"cookie"])
def test_everything_else_goes_on_known_or_not(name: bytes) -> None:
    assert list(forward_request(field(name))) == list(field(name))
    assert list(forward_response(field(name))) == list(field(name))


def test_the_order_and_the_doubles_of_fields_are_kept() -> None:
    headers: Headers = ((b"b", b"1"), (b"a", b"2"), (b"b", b"3"))
    assert tuple(forward_request(headers)) == headers
    assert forward_response(headers) == headers


def test_the_length_of_an_answer_goes_on() -> None:
    assert forward_response(((b"content-length", b"7"),)) == ((b"content-length", b"7"),)


@pytest.mark.parametrize("name", [b"x-palimpsest-session", b"x-palimpsest-", b"x-palimpsest-new"])
def test_what_another_palimpsest_says_of_its_calls_is_not_passed_on(name: bytes) -> None:
    assert forward_response((*field(name), (b"x-palimpsestry", b"1"))) == ((b"x-palimpsestry", b"1"),)


@pytest.mark.parametrize("name", [*CREDENTIALS, b"cookie", b"set-cookie", b"proxy-authorization", b"x-unheard-of"])
def test_no_credential_and_no_unknown_field_rests_in_the_log(name: bytes) -> None:
    assert select_stored(field(name)) == ()


@pytest.mark.parametrize("name", [*KNOWN_TO_MATTER, b"content-type", b"content-encoding", b"x-palimpsest-mode"])
def test_the_listed_fields_rest_in_the_log(name: bytes) -> None:
    assert select_stored(field(name)) == field(name)


def test_the_first_value_of_a_field_is_found_and_an_absent_one_is_empty() -> None:
    headers: Headers = ((b"a", b"1"), (b"b", b"2"), (b"b", b"3"))
    assert find_header(headers, b"b") == b"2"
    assert find_header(headers, b"c") == b""


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_credential_is_found_in_each_field_that_carries_one(name: bytes) -> None:
    assert is_credential(name)
    assert find_credential(((b"accept", b"x"), (name, b"secret"))) == b"secret"


def test_an_empty_credential_does_not_hide_the_next_one() -> None:
    assert find_credential(((b"authorization", b""), (b"x-api-key", b"secret"))) == b"secret"


def test_other_fields_carry_no_credential() -> None:
    assert not is_credential(b"content-type")
    assert find_credential(field(b"content-type")) == b""


@pytest.mark.parametrize(
    ("value", "bare"), [(b"Bearer abc", b"abc"), (b"abc", b"abc"), (b"Basic  x=", b"x="), (b"", b"")]
)
def test_a_credential_is_bared_of_its_scheme(value: bytes, bare: bytes) -> None:
    assert strip_scheme(value) == bare


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        (b"/v1/models", "/v1/models"),
        (b"/v1/models?key=AIza-secret", "/v1/models?key"),
        (b"/v1/x?a=1&b&c=2=3", "/v1/x?a&b&c"),
        (b"/v1/x?", "/v1/x?"),
        (b"/\xff?a=1", "/\xff?a"),
    ],
)
def test_a_target_is_kept_without_the_values_of_its_query(target: bytes, kept: str) -> None:
    assert redact_target(target) == kept


def test_an_upstream_is_asked_for_itself_with_what_says_who_asks() -> None:
    kept = [*((name, b"k") for name in CREDENTIALS), (b"anthropic-version", b"1"), (b"openai-organization", b"o")]
    others = [(b"content-type", b"x"), (b"accept-encoding", b"br"), (b"cookie", b"c"), (b"x-palimpsest-session", b"s")]
    ours = [(b"accept", b"application/json"), (b"accept-encoding", b"identity")]
    assert list(select_for_model_list((*kept, *others))) == [*kept, *ours]


def test_a_plain_answer_is_asked_for_in_place_of_what_the_client_takes() -> None:
    fields = ((b"accept-encoding", b"gzip, br"), (b"x-a", b"1"), (b"accept-encoding", b"zstd"))
    assert accept_identity_only(fields) == ((b"x-a", b"1"), (b"accept-encoding", b"identity"))
    assert accept_identity_only(()) == ((b"accept-encoding", b"identity"),)


ASKED_WITH = (
    (b"authorization", b"Bearer k"),
    (b"content-type", b"application/json; charset=x"),
    (b"content-encoding", b"gzip"),
    (b"accept-encoding", b"gzip"),
    (b"idempotency-key", b"i"),
    (b"connection", b"close"),
    (b"x-palimpsest-pin", b"true"),
    (b"anthropic-beta", b"b"),
)
PLAIN = ((b"content-type", b"application/json"), (b"accept-encoding", b"identity"))


def test_a_call_of_our_own_says_who_asks_and_nothing_of_the_callers_body() -> None:
    assert select_for_own_call(ASKED_WITH) == ((b"authorization", b"Bearer k"), (b"anthropic-beta", b"b"), *PLAIN)


def test_another_server_is_told_nothing_of_the_caller() -> None:
    assert select_for_own_call(ASKED_WITH, is_same_upstream=False) == PLAIN


def test_all_credentials_of_a_request_are_found_without_their_schemes() -> None:
    assert list_credentials((*ASKED_WITH, (b"x-api-key", b"l"))) == (b"k", b"l")


def test_credentials_are_in_cookies_queries_and_named_fields_too() -> None:
    headers: Headers = (
        (b"x-api-key", b"a"),
        (b"cookie", b'one=b; two="c"; flag'),
        (b"x-team", b"d"),
        (b"x-other", b"z"),
        (b"cookie", b"three=e=f"),
    )
    target = b"/v1/x?after=z&KEY=g%2Bh&token&sig=&api-key=i"
    found = list_credentials(headers, target, (b"x-team",))
    assert found == (b"a", b"d", b"b", b"c", b"e=f", b"g%2Bh", b"g+h", b"i")
    assert list_credentials((), b"/v1/x") == ()


def test_names_that_nobody_uses_twice_are_judged_all_the_same_and_not_kept_in_mind() -> None:
    for i in range(3000):
        kept = ((b"openai-invented-%d" % i, b"a"), (b"user-agent", b"b"))
        dropped = (b"x-invented-%d" % i, b"c")
        assert select_stored((*kept, dropped)) == kept
    assert len(headers._stored) <= 1024


@pytest.mark.parametrize("value", [b"palimpsest_admin=x", b" palimpsest_admin =x; Path=/", b"=palimpsest_admin=x"])
def test_no_upstream_sets_our_cookie(value: bytes) -> None:
    kept = ((b"set-cookie", b"__cf_bm=palimpsest_admin; Path=/"), (b"x-one", OWN_COOKIE))
    assert forward_response((kept[0], (b"set-cookie", value), kept[1])) == kept


@pytest.mark.parametrize(
    ("origin", "answered", "fields"),
    [
        (b"", b"*", ((b"vary", b"x"),)),
        (b"", b"https://a", ((b"vary", b"x"),)),
        (b"https://a", b" * ", ((b"vary", b"x"), (b"access-control-allow-origin", b"https://a"), (b"vary", b"origin"))),
    ],
)
def test_an_answer_is_shared_with_whoever_asked_only(origin: bytes, answered: bytes, fields: Headers) -> None:
    given = (
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-allow-origin", answered),
        (b"vary", b"x"),
    )
    assert allows_cross_origin(given)
    assert restrict_cross_origin(((b"origin", origin),) if origin else (), given) == fields


def test_an_answer_that_names_a_page_goes_to_pages_as_it_is() -> None:
    given = ((b"access-control-allow-origin", b"https://a"), (b"access-control-allow-credentials", b"true"))
    assert restrict_cross_origin(((b"origin", b"https://b"),), given) == given
    assert not allows_cross_origin(given[1:])


def test_hops_are_listed_in_order_from_all_their_fields() -> None:
    hop = b"x-palimpsest-hop"
    assert list_hops(((hop, b" a,,b "), (b"x-other", b"z"), (hop, b""), (hop, b"c"))) == [b"a", b"b", b"c"]
    assert list_hops(((b"x-other", b"z"),)) == []


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        *(("localhost", True), ("a.localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True)),
        *(("0.0.0.0", False), ("10.0.0.1", False), ("localhost.a", False), ("alocalhost", False), ("", False)),
    ],
)
def test_loopback_is_this_machines_alone(host: str, *, is_own: bool) -> None:
    assert is_loopback(host) == is_own


NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


def read(**fields: str) -> RateLimitHeaders:
    return read_rate_limits(tuple((k.replace("_", "-").encode(), v.encode()) for k, v in fields.items()), NOW_MS)


def test_as_openai_says_it() -> None:
    told = read(
        x_ratelimit_remaining_requests="59",
        x_ratelimit_remaining_tokens="149984",
        x_ratelimit_reset_requests="1s",
        x_ratelimit_reset_tokens="6m0.5s",
    )
    assert told == RateLimitHeaders(149984, 59, 360.5, 1.0)


def test_as_anthropic_says_it() -> None:
    told = read(
        anthropic_ratelimit_requests_remaining="49",
        anthropic_ratelimit_requests_reset="2023-11-14T22:13:30Z",
        anthropic_ratelimit_tokens_remaining="90000",
        anthropic_ratelimit_input_tokens_remaining="40000",
        anthropic_ratelimit_tokens_reset="2023-11-14T22:14:20Z",
    )
    assert told == RateLimitHeaders(40000, 49, 60.0, 10.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20", 20.0),
        ("0.5", 0.5),
        ("20ms", 0.02),
        ("1h2m3s", 3723.0),
        ("Tue, 14 Nov 2023 22:13:25 GMT", 5.0),
        ("2023-11-14T22:13:21", 1.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("soon", None),
        ("", None),
        ("-5", None),
        ("1_0", None),
    ],
)
def test_when_to_ask_again(text: str, seconds: float | None) -> None:
    assert read(retry_after=text).retry_after == seconds


def test_milliseconds_are_more_exact() -> None:
    assert read(retry_after="2", retry_after_ms="1500").retry_after == 1.5


@pytest.mark.parametrize("text", ["1700000030", "1700000030000"])
def test_a_time_may_be_given_in_seconds_or_milliseconds_since_1970(text: str) -> None:
    assert read(x_ratelimit_remaining="0", x_ratelimit_reset=text) == RateLimitHeaders(requests=0, requests_reset=30.0)


def test_what_is_no_number_says_nothing() -> None:
    assert read(x_ratelimit_remaining_tokens="lots", x_ratelimit_remaining_requests="1e9") == RateLimitHeaders()


def test_only_what_tells_of_limits_is_to_be_read() -> None:
    assert has_rate_limits(((b"date", b"x"), (b"x-ratelimit-remaining-tokens", b"1")))
    assert has_rate_limits(((b"retry-after-ms", b"1"),))
    assert not has_rate_limits(((b"x-request-id", b"1"), (b"x-ratelimit-limit-tokens", b"1")))


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ((), ()),
        (((b"x", b"a-1"),), ((b"x", b"a-1"),)),
        (((b"anthropic-beta", b"a-1"),), ()),
        (((b"anthropic-beta", b"b-1, a-1,c"), (b"x", b"")), ((b"anthropic-beta", b"b-1,c"), (b"x", b""))),
        (((b"anthropic-beta", b"a-1, b-1"), (b"anthropic-beta", b"a-2")), ((b"anthropic-beta", b"b-1"),)),
    ],
)
def test_values_of_a_beta_are_left_out(fields: Headers, left: Headers) -> None:
    assert drop_beta(fields, b"a-") == left


@pytest.mark.parametrize(
    ("values", "encoding"),
    [((), ""), ((b"gzip",), "gzip"), ((b" GZip , zstd",), "gzip , zstd"), ((b"gzip", b"zstd"), "gzip,zstd")],
)
def test_a_content_encoding_may_be_told_in_several_fields(values: tuple[bytes, ...], encoding: str) -> None:
    named: Headers = ((b"a", b"b"), *((b"content-encoding", value) for value in values))
    assert read_encoding(named) == encoding
