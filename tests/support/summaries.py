"""Summaries of spans."""

from collections.abc import Mapping

from proxy.model.epoch import Summary


def make_summary(
    id: str,
    start: int,
    stop: int,
    parents: tuple[str, ...] = (),
    tokens: int = 100,
    supersedes: tuple[str, ...] = (),
) -> Summary:
    """A leaf, or one condensed of others."""
    return Summary(
        id=id, session="s", wire="chat_completions", start=start, stop=stop, last=b"", made_ms=0, level=1, text=id,
        kind="condensed" if parents else "leaf", is_provisional=False, tokens=tokens, covered=0, parents=parents,
        supersedes=supersedes or parents,
    )  # fmt: skip


def list_leaves(summary: Summary, known: Mapping[str, Summary]) -> list[Summary]:
    """Return the leaves that a summary is made of, in order. Raises KeyError where one is not known."""
    if not summary.parents:
        return [summary]
    return [leaf for id in summary.parents for leaf in list_leaves(known[id], known)]
