from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.store.search.indexer import Indexer
from tests.support.indexing import LogBuilder


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogBuilder]:
    """A log without a record."""
    builder = LogBuilder(tmp_path / "log.db")
    yield builder
    builder.close()


@pytest.fixture
def indexer(log: LogBuilder) -> Iterator[Indexer]:
    """What indexes it."""
    made = Indexer(log.path)
    yield made
    made.close()
