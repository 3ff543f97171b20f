"""The requests of a transcript as bytes, and its answers as responses of a provider."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.model.exchange import Headers
from proxy.transcripts.transcript import Transcript, TranscriptCall, encode, read_json, read_list, read_map
from proxy.wire import FORMATS

CALL = b"x-transcript-call"
"""The header by which the replayed upstream knows a call of the transcript."""

_KEY = b"Bearer transcript"
_FILLER = " the"  # one token in every encoding of ours


class Requests:
    """The requests of one transcript. What the transcript lacks before its messages is `filler` tokens of text."""

    def __init__(self, transcript: Transcript, filler: int = 0) -> None:
        self._transcript = transcript
        self._form = FORMATS[transcript.wire]
        self._leading: tuple[bytes, ...] = ()
        head = {name: value for name, value in transcript.head.items() if name != "model"}
        if filler > 0:
            self._fill(head, _FILLER * filler)
        if transcript.lifetime and not _is_marked(head):
            _mark_head(head, self._marker)
        self._head = b"".join(b",%b:%b" % (encode(name), encode(value)) for name, value in head.items())

    def make_body(self, call: TranscriptCall) -> bytes:
        """Return the body of a call's request."""
        items = [*self._leading, *self._transcript.trails[call.trail][: call.depth]]
        if self._transcript.lifetime and items:
            items[-1] = _mark(items[-1], self._marker)
        return self._make(call.model, items)

    def make_head(self, model: str) -> bytes:
        """Return the body of a request without a message of the transcript."""
        return self._make(model, self._leading)

    def _make(self, model_name: str, items: Sequence[bytes]) -> bytes:
        model, name = encode(model_name), encode(self._form.items_key)
        return b'{"model":%b%b,%b:[%b]}' % (model, self._head, name, b",".join(items))

    def make_headers(self, number: int) -> Headers:
        """Return the headers of the request with this number, beside those of all."""
        client, version = self._transcript.client, self._transcript.version
        agent = f"{client}/{version}" if version else client
        return (
            (b"authorization", _KEY),
            (b"user-agent", agent.encode("ascii", "replace")),
            (b"x-palimpsest-session", self._transcript.id.encode("ascii", "replace")[:200]),
            (CALL, b"%d" % number),
        )

    @property
    def _marker(self) -> dict[str, str]:
        return {"type": "ephemeral", **({"ttl": "1h"} if self._transcript.lifetime == "1h" else {})}

    def _fill(self, head: dict[str, Any], text: str) -> None:
        key = self._form.instructions_key
        if not key:
            self._leading = (encode({"role": "system", "content": text}),)
        else:
            head[key] = [{"type": "text", "text": text}] if self._form.takes_markers else f"{head.get(key, '')}{text}"


def _is_marked(head: Mapping[str, Any]) -> bool:
    return any("cache_control" in read_map(block) for block in read_list(head.get("system")))


def _mark_head(head: dict[str, Any], marker: Mapping[str, str]) -> None:
    blocks = [dict(read_map(block)) for block in read_list(head.get("system"))]
    if blocks:
        blocks[-1]["cache_control"] = marker
        head["system"] = blocks


def _mark(raw: bytes, marker: Mapping[str, str]) -> bytes:
    """Return a message whose last block has a cache marker, as clients set it with each request anew."""
    message = read_map(read_json(raw))
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else [*read_list(content)]
    if not blocks or not isinstance(blocks[-1], dict):
        return raw
    return encode(message | {"content": [*blocks[:-1], blocks[-1] | {"cache_control": marker}]})
