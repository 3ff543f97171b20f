"""A generated secret in a file of the data directory, readable by its owner only."""

import os
import secrets
from pathlib import Path


def load_or_create_secret(path: Path) -> str:
    """Return the secret in a file, or a new one of 256 random bits in a new file of mode 0600. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return path.read_text("ascii").strip()
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        secret = secrets.token_urlsafe(32)
        file.write(secret)
    return secret


def read_secret(path: Path) -> str:
    """Return the secret in a file, or an empty text if it cannot be read."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
