import pytest

from tests.engine.lineage.resolver_setup import Setup


@pytest.fixture
def setup() -> Setup:
    return Setup()
