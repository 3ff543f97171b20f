"""Types of values: what they take and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from proxy.config.value_types import DirectoryPath, find_environment_proxy
from proxy.engine.policy import SecretFile
from proxy.model.settings import BaseUrl, HeaderName, ProxyUrl, Secret, Size, WebOrigin


def refuse(kind: Any, value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    message: str = caught.value.errors()[0]["msg"]
    return message


@pytest.mark.parametrize(
    ("given", "size"),
    [(0, 0), (1024, 1024), ("1024", 1024), ("64MiB", 64 * 2**20), ("64 mib", 64 * 2**20), ("2kB", 2000), ("3B", 3)],
)
def test_a_size_is_bytes_or_has_a_unit(given: object, size: int) -> None:
    assert TypeAdapter(Size).validate_python(given) == size


@pytest.mark.parametrize("given", ["64M", "a lot", "-5", "1.5GiB", "64MiB!", "", "5 PB"])
def test_a_size_that_could_mean_two_things_is_refused(given: str) -> None:
    assert "64MiB" in refuse(Size, given)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1"),
        ("http://127.0.0.1:9000/v1/", "http://127.0.0.1:9000/v1"),
        ("http://[::1]:9000", "http://[::1]:9000"),
        ("https://example.com/v1beta/openai//", "https://example.com/v1beta/openai"),
    ],
)
def test_a_base_url_is_taken_as_an_sdk_takes_it(given: str, kept: str) -> None:
    assert TypeAdapter(BaseUrl).validate_python(given) == kept


@pytest.mark.parametrize(
    "given",
    [
        *("", "api.openai.com/v1", "ftp://example.com", "https://", "http://x:port/", "http://x:0", "http://[::1/v1"),
        *("http://exa mple/", "http://example/\n", "http://ex\u00e4mple/"),
    ],
)
def test_an_address_that_cannot_be_called_is_refused(given: str) -> None:
    assert "https://api.openai.com/v1" in refuse(BaseUrl, given)


def test_a_base_url_with_a_password_is_refused_without_repeating_it() -> None:
    message = refuse(BaseUrl, "https://user:hidden@example.com/v1")
    assert "api_key" in message
    assert "hidden" not in message


@pytest.mark.parametrize("given", ["https://example.com/v1?key=1", "https://example.com/v1?", "https://example.com/#a"])
def test_a_base_url_with_a_query_is_refused(given: str) -> None:
    assert "query" in refuse(BaseUrl, given)


def test_a_header_name_is_kept_in_lower_case() -> None:
    assert TypeAdapter(HeaderName).validate_python("X-Conversation-Id") == "x-conversation-id"
    assert "header" in refuse(HeaderName, "x: y")


@pytest.mark.parametrize("given", ["two words", "line\nbreak", "schl\u00fcssel"])
def test_a_secret_that_would_break_a_header_is_refused(given: str) -> None:
    assert "sent in a header" in refuse(Secret, given)


def test_a_home_directory_is_spelt_out() -> None:
    assert TypeAdapter(DirectoryPath).validate_python("~/x") == Path.home() / "x"


@pytest.mark.parametrize("kind", [DirectoryPath, SecretFile], ids=["directory", "secret file"])
@pytest.mark.parametrize(
    ("given", "what"), [("~nosuchuser/x", "user who is not known"), ("a\0b", "path"), ("a\ud800", "path")]
)
def test_what_can_be_no_path_is_refused_in_words(kind: Any, given: str, what: str) -> None:
    assert what in refuse(kind, given)


def test_a_name_that_is_no_utf_8_is_a_path_all_the_same() -> None:
    assert TypeAdapter(DirectoryPath).validate_python(Path("a\udcff")) == Path("a\udcff")


def test_a_secret_file_gives_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-1\n")
    assert TypeAdapter(SecretFile).validate_python(str(file)) == "sk-1"
    assert TypeAdapter(SecretFile).validate_python("") == ""


def test_a_secret_file_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    file = tmp_path / "key"
    assert "No such file" in refuse(SecretFile, str(file))
    file.write_bytes(b"")
    assert "empty" in refuse(SecretFile, str(file))
    file.write_bytes(b"\xff\xfe")
    assert "UTF-8" in refuse(SecretFile, str(file))
    assert "path" in refuse(SecretFile, 5)


@pytest.mark.parametrize("given", ["https://App.example", "http://[::1]:3000", "vscode-webview://1a-2b", "*"])
def test_an_origin_is_compared_in_lower_case(given: str) -> None:
    assert TypeAdapter(WebOrigin).validate_python(given) == given.lower()


@pytest.mark.parametrize("given", ["", "app.example", "https://app.example/", "https://", "null", "https://*.example"])
def test_what_no_page_can_come_from_is_refused(given: str) -> None:
    assert "https://app.example" in refuse(WebOrigin, given)


@pytest.mark.parametrize("given", ["none", "env", "http://proxy.example:3128", "https://user:pass@10.0.0.1:8080/"])
def test_a_proxy_is_none_or_the_environments_or_a_url(given: str) -> None:
    assert TypeAdapter(ProxyUrl).validate_python(given) == given


@pytest.mark.parametrize(
    "given",
    [
        *("", "proxy.example:3128", "socks5://user:hidden@proxy.example", "http://", "http://x:port", "http://x:0"),
        *("http://proxy.example/hidden", "http://proxy.example?hidden", "http://hid den"),
    ],
)
def test_what_is_no_http_proxy_is_refused_without_repeating_it(given: str) -> None:
    message = refuse(ProxyUrl, given)
    assert "http://proxy.example:3128" in message
    assert "hidden" not in message


@pytest.mark.parametrize(
    ("variables", "base_url", "found"),
    [
        ({}, "https://api.example/v1", ""),
        ({"HTTPS_PROXY": "http://a:1", "HTTP_PROXY": "http://b:2"}, "https://api.example/v1", "http://a:1"),
        ({"HTTPS_PROXY": "http://a:1", "http_proxy": "http://b:2"}, "http://api.example/v1", "http://b:2"),
        ({"HTTPS_PROXY": "http://a:1", "https_proxy": "c:3"}, "https://api.example/v1", "http://c:3"),
        ({"ALL_PROXY": "http://a:1"}, "https://api.example/v1", "http://a:1"),
        ({"ALL_PROXY": "http://a:1", "NO_PROXY": "x, .example"}, "https://api.example/v1", ""),
        ({"ALL_PROXY": "http://a:1", "NO_PROXY": "api.example:8443"}, "https://api.example:8443/v1", ""),
        ({"ALL_PROXY": "http://a:1", "NO_PROXY": "*"}, "https://api.example/v1", ""),
        ({"ALL_PROXY": "http://a:1"}, "http://127.0.0.1:11434/v1", ""),
        ({"ALL_PROXY": "http://a:1"}, "http://localhost:11434/v1", ""),
    ],
)
def test_the_environments_proxy_is_found_as_other_programs_find_it(
    variables: dict[str, str], base_url: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_environment_proxy(base_url) == found
