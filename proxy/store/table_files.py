"""Tables of SQLite files that other programs own. They are read from a copy: even looking at one may change it."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from proxy.model.errors import StoreUnavailable

_BESIDE = ("", "-wal")  # what was written last may stand in the write-ahead log only


def read_tables(path: Path, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables with these names, as far as the file has them. Raises StoreUnavailable."""
    try:
        with tempfile.TemporaryDirectory(prefix="palimpsest-") as folder:
            copy = Path(folder) / "copy.db"
            for ending in _BESIDE:
                if (source := path.with_name(path.name + ending)).exists():
                    shutil.copyfile(source, copy.with_name(copy.name + ending))
            with closing(sqlite3.connect(copy)) as connection:
                connection.row_factory = sqlite3.Row
                found = {
                    row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                }
                return {
                    name: [dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')]
                    for name in names
                    if name in found
                }
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}") from error
