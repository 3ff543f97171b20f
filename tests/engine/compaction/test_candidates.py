"""Who is asked, and where."""

import pytest

from proxy.engine.compaction.candidates import list_candidates
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.request_resolver import Route
from tests.support.engine import ScriptedUpstream

HOME, OTHER = ScriptedUpstream("home"), ScriptedUpstream("other")
ROUTES = (Route(HOME), Route(OTHER, ("small-*",)))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CompactionPolicy(), [("home", "m")]),
        (CompactionPolicy(model="n"), [("home", "n")]),
        (CompactionPolicy(fallback_models=("n", "m", "o")), [("home", "m"), ("home", "n"), ("home", "o")]),
        (CompactionPolicy(model="small-1"), [("home", "small-1")]),
        (CompactionPolicy(model="small-1", may_receive=("other",)), [("other", "small-1")]),
        (
            CompactionPolicy(fallback_models=("small-1", "n"), may_receive=("other",)),
            [
                ("home", "m"),
                ("other", "small-1"),
                ("home", "n"),
            ],
        ),
    ],
)
def test_conversations_stay_at_home_unless_a_person_said_so(
    policy: CompactionPolicy, expected: list[tuple[str, str]]
) -> None:
    found = list_candidates(policy, HOME, "m", ROUTES)
    assert [(candidate.upstream.name, candidate.model) for candidate in found] == expected


def test_the_model_of_the_conversation_is_where_the_conversation_is() -> None:
    policy = CompactionPolicy(may_receive=("other",))
    [candidate] = list_candidates(policy, HOME, "small-1", ROUTES)
    assert candidate.upstream is HOME
