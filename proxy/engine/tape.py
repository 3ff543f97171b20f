"""What is kept of bytes that pass. Rule: up to the cap everything, beyond it a count and a digest of all."""

import hashlib


class Tape:
    """Takes the pieces of one body as they pass; holds at most `cap` bytes."""

    __slots__ = ("_hash", "_kept", "_pieces", "cap", "size")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._kept = 0
        self._pieces: list[bytes] = []
        self._hash: hashlib._Hash | None = None
        self.size = 0

    def add(self, content: bytes) -> None:
        """Take one piece."""
        self.size += len(content)
        if self._hash is not None:
            self._hash.update(content)
            return
        if self.size <= self.cap:
            self._pieces.append(content)
            self._kept += len(content)
            return
        self._hash = hashlib.sha256(b"".join(self._pieces))
        self._hash.update(content)
        self._pieces.append(content[: self.cap - self._kept])
        self._kept = self.cap

    @property
    def is_capped(self) -> bool:
        """Whether more passed than was kept."""
        return self._hash is not None

    @property
    def content(self) -> bytes:
        """What was kept, in order."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    @property
    def whole_digest(self) -> bytes:
        """SHA-256 of all that passed, where not all was kept; else empty."""
        return self._hash.digest() if self._hash is not None else b""
