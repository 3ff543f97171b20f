"""A secret of our own in the data directory. Rule: made once, readable by its owner only, never replaced."""

import os
import secrets
from pathlib import Path


def load_or_create_secret(path: Path) -> str:
    """The secret in a file; a new one of 256 random bits, mode 0600, if there is no such file. Raises OSError."""
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
    """The secret in a file; empty where there is none that can be read."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
