"""Keeps what a client gets, so that its history can go on with it."""

from proxy.engine.ports import Client
from proxy.engine.response_stream import PassingClient
from proxy.model.exchange import Headers
from proxy.wire.format import Format


class CapturingClient(PassingClient):
    """Passes a response on unchanged, and keeps its first `cap` bytes."""

    def __init__(self, client: Client, form: Format, cap: int) -> None:
        super().__init__(client)
        self._form = form
        self._cap = cap
        self._pieces: list[bytes] = []
        self._size = 0
        self.status = 0
        self.headers: Headers = ()
        self.is_whole = False

    @property
    def content(self) -> bytes:
        """The body so far. Empty if it has more than is kept."""
        return b"".join(self._pieces) if self._size <= self._cap else b""

    @property
    def is_ending(self) -> bool:
        """Whether the client has the end of its answer, so that it may send the next request already."""
        return self.is_whole or self._form.end_marker.search(self.content) is not None

    def start(self, status: int, headers: Headers) -> None:
        """Send the head. Only the first one counts."""
        if not self.status:
            self.status, self.headers = status, headers
        self._client.start(status, headers)

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Send body bytes. Return as the port says."""
        self._size += len(content)
        if self._size <= self._cap:
            self._pieces.append(content)
        else:
            self._pieces.clear()
        self.is_whole = self.is_whole or is_last
        return self._client.write(content, is_last=is_last)
