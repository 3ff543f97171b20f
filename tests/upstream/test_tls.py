"""An upstream over TLS: known by a certificate that somebody we trust has signed, and otherwise not talked to."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.engine.runtime import TaskRunner
from proxy.model.errors import UpstreamUnreachable
from proxy.upstream.forwarder import Forwarder
from proxy.upstream.policy import UpstreamPolicy
from tests.support.scripted import LIMIT, ScriptedUpstream, answer, chunk, stream_head


@pytest.fixture
async def secure(certificate: Path) -> AsyncIterator[ScriptedUpstream]:
    """An upstream with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    async with ScriptedUpstream(context) as server:
        yield server


async def ask(forwarder: Forwarder) -> bytes:
    """The body of the answer to a call."""
    async with asyncio.timeout(LIMIT):
        response = await forwarder.send("POST", b"/v1/x", (), b"{}")
        content = b""
        while piece := await response.read():
            content += piece
    response.close()
    return content


async def test_an_upstream_whose_signer_the_system_trusts_is_talked_to(
    secure: ScriptedUpstream, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    forwarder = Forwarder(UpstreamPolicy("u", secure.url), TaskRunner().spawn)
    secure.answer_with(answer(b"secret"))
    assert [await ask(forwarder) for _ in range(3)] == [b"secret"] * 3
    assert secure.accepted == 1
    forwarder.close()


async def test_a_stream_over_tls_that_is_cut_is_broken(
    secure: ScriptedUpstream, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    forwarder = Forwarder(UpstreamPolicy("u", secure.url), TaskRunner().spawn)
    secure.close_after(stream_head() + chunk(b"part"))
    with pytest.raises(UpstreamUnreachable, match="in the middle of its answer"):
        await ask(forwarder)


async def test_an_upstream_that_nobody_vouches_for_gets_nothing(secure: ScriptedUpstream) -> None:
    forwarder = Forwarder(UpstreamPolicy("u", secure.url), TaskRunner().spawn)
    secure.answer_with(answer(b"secret"))
    with pytest.raises(UpstreamUnreachable, match=r"(?i)certificate"):
        await ask(forwarder)
    assert secure.requests == []
