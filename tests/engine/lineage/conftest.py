import pytest

from tests.engine.lineage.desk import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()
