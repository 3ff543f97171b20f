"""Files that Python programs show to a model: small ones whole, large ones by a reference and an outline."""

import asyncio
from pathlib import Path

from proxy.model.errors import TooLarge
from proxy.model.results import FileHandleResult
from proxy.sdk.session import Session

MOST_BYTES = 256 * 1024 * 1024


class LargeFileHandler:
    """Prepares files for the messages of a session.

    What is below `files.inline_tokens` is to be sent whole. Of more, `file_ref` is a part to send in its place: the
    model sees an outline, and the log has all of it, under the reference.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def handle_file(self, path: str | Path, *, content: str | None = None) -> FileHandleResult:
        """Return how a file is to be sent. Without `content` it is read, as UTF-8.

        Raises OSError where it cannot be read, TooLarge, StoreError and SessionClosedError.
        """
        if content is None:
            content = await asyncio.to_thread(_read, Path(path))
        return await self._session.handle_file(path, content)


def _read(path: Path) -> str:
    if (size := path.stat().st_size) > MOST_BYTES:
        raise TooLarge(f"{path} has {size:,} bytes; at most {MOST_BYTES:,} are read. Give a part of it as content")
    return path.read_bytes().decode("utf-8", "replace")  # with the ends of its lines as they are
