"""What holds for every test: how long hypothesis looks, how long calls wait for the log, what is told of failures.

`HYPOTHESIS_PROFILE=thorough` has hypothesis try twenty times as many examples everywhere. No example has a time limit,
for what that measures is the machine and who else is busy on it.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.scripted import LIMIT

# How long a call waits for the log before it goes on without what that knows. A busy machine takes longer, and then
# another request would be sent than the test is about; tests of these bounds set them themselves.
_WAITS = (
    "proxy.engine.lineage.tracking._RECALL_SECONDS",
    "proxy.engine.managing.contexts._LOAD_SECONDS",
    "proxy.store.sqlite.archive._MOST_LAG_OF_A_CALL_SECONDS",
)

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
settings.register_profile("thorough", max_examples=2000, deadline=None)
if profile := os.environ.get("HYPOTHESIS_PROFILE"):
    settings.load_profile(profile)


@pytest.fixture(autouse=True, scope="session")
def patience() -> Iterator[None]:
    """Have calls wait for the log as long as it takes, and answers be read without waiting for more of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _WAITS:
            patch.setattr(name, LIMIT)
        patch.setattr("proxy.engine.readings._GATHER_SECONDS", 0.0)
        yield
