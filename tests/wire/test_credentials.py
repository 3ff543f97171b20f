"""Credentials by what they say of themselves."""

import base64
import json

import pytest

from proxy.wire.credentials import is_jwt, is_of_plan, read_claims


def token(claims: object) -> bytes:
    return b"eyJhbGciOiJ9." + base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=") + b".c2ln"


def test_claims_are_read_as_they_stand() -> None:
    assert {name: bytes(raw) for name, raw in read_claims(token({"iss": "a", "n": 1})).items()} == {
        "iss": b'"a"',
        "n": b"1",
    }


@pytest.mark.parametrize("text", [b"sk-1", b"a.b.c", b"eyJ.ey!!.x", b"eyJ.eyJzdWIi.x"])
def test_what_is_no_token_claims_nothing(text: bytes) -> None:
    assert not read_claims(text)


def test_the_form_alone_tells_a_token() -> None:
    assert is_jwt(b"eyJ.eyJzdWIi.x")
    assert not is_jwt(b"sk-proj-1")


@pytest.mark.parametrize(
    "headers",
    [
        ((b"authorization", b"Bearer sk-ant-oat01-x"),),
        ((b"x-api-key", b"sk-ant-oat01-x"),),
        ((b"authorization", b"Bearer gho_16C7e42F292c6912E7710c838347Ae178B4a"),),
        ((b"authorization", b"Bearer tid=1;exp=2"),),
        ((b"authorization", b"Bearer " + token({"iss": "https://auth.openai.com"})),),
        ((b"authorization", b"Bearer " + token({"iss": "accounts.google.com"})),),
        ((b"authorization", b"Bearer " + token({"iss": 7})),),
        ((b"authorization", b"Bearer " + token({"iss": "http://[x"})),),
        ((b"authorization", b"Bearer eyJ.eyJzdWIi.x"),),
        ((b"authorization", b"Bearer x"), (b"chatgpt-account-id", b"1")),
        ((b"authorization", b"Bearer x"), (b"copilot-integration-id", b"vscode-chat")),
    ],
)
def test_a_plan_is_known_by_its_credential(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert is_of_plan(headers)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer sk-proj-1",
        b"Bearer sk-ant-api03-x",
        b"Bearer " + token({"iss": "https://gateway.example", "sub": "a"}),
        b"Bearer " + token({"sub": "a"}),
    ],
)
def test_a_key_is_no_plan(value: bytes) -> None:
    assert not is_of_plan(((b"authorization", value),))
