"""The result of a trial: what sessions cost, what they would have cost managed, and what would have been cut."""

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.context.pricing import Cost
from proxy.model.epoch import EpochReason

Document = dict[str, Any]


class EpochEstimate(msgspec.Struct, frozen=True):
    """An epoch that would have been opened for a call, counted from 1, and why. Tokens are of the whole request."""

    n: int
    call: int
    why: EpochReason
    tokens_before: int
    tokens_after: int


class Cut(msgspec.Struct, frozen=True):
    """What of a session would have been shortened in the end, in messages: all of them would stay in the log.

    `outputs`: outputs of tools that a reference stands for. `files`: contents shown by their structure. `shortened`:
    other long texts. `told`: messages that the ledger, or a summary, tells of.
    """

    outputs: int = 0
    files: int = 0
    shortened: int = 0
    told: int = 0

    def __add__(self, other: "Cut") -> "Cut":
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Cut(*(one + two for one, two in pairs))


class SessionEstimate(msgspec.Struct, frozen=True):
    """The estimate for one session.

    `before` is what it cost, `after` what it would have cost. `client` and `sent` are the input tokens of each call, as
    it was and as it would have been. `reasons` say why it is only an estimate; none: its transcript has whole requests
    and their usage.
    """

    id: str
    client: str
    version: str
    model: str
    upstream: str
    title: str
    source: str
    began_ms: int
    before: Cost
    after: Cost
    client_tokens: tuple[int, ...]
    sent_tokens: tuple[int, ...]
    output_tokens: int
    epochs: tuple[EpochEstimate, ...]
    cut: Cut
    errors: int
    reasons: tuple[str, ...]

    @property
    def calls(self) -> int:
        """The number of its calls."""
        return len(self.client_tokens)

    @property
    def saved(self) -> Cost:
        """What managing would have saved; negative for a loss."""
        return self.before - self.after


class Trial(msgspec.Struct, frozen=True):
    """The estimates for all sessions, the newest first, and what could not be read.

    `files` were read, `skipped` are no transcripts. `broken` lines could not be read, `unknown` ones not understood.
    `strategy` and `summaries` say how they would have been managed.
    """

    sessions: tuple[SessionEstimate, ...]
    files: int
    skipped: tuple[str, ...]
    broken: int
    unknown: int
    strategy: str
    notes: tuple[str, ...] = ()

    @property
    def priced(self) -> tuple[SessionEstimate, ...]:
        """The sessions whose prices are known."""
        return tuple(each for each in self.sessions if each.before.money is not None and each.after.money is not None)


def sum_costs(costs: Sequence[Cost]) -> Cost:
    """Return the sum of costs. Its money is None if that of any is."""
    return sum(costs, start=Cost())


def compute_share(before: Cost, after: Cost) -> float | None:
    """Return the share of a cost that is saved, negative for a loss; None for no cost. In money where that is known."""
    if before.money is not None and after.money is not None:
        return 1 - after.money / before.money if before.money > 0 else None
    return 1 - after.tokens / before.tokens if before.tokens > 0 else None


def describe_trial(trial: Trial) -> Document:
    """Return the result as a document. Costs are in tokens of uncached input and in money, which is null if unknown."""
    sessions = trial.sessions
    priced = trial.priced
    return {
        "sessions": [describe_session(each) for each in sessions],
        "total": {
            "sessions": len(sessions),
            "calls": sum(each.calls for each in sessions),
            "priced": len(priced),
            **_describe_costs(priced if priced else sessions),
            "losing": sum(each.saved.tokens < 0 for each in sessions),
            "epochs": sum(len(each.epochs) for each in sessions),
            "errors": sum(each.errors for each in sessions),
        },
        "files": trial.files,
        "skipped": list(trial.skipped),
        "broken_lines": trial.broken,
        "unknown_lines": trial.unknown,
        "strategy": trial.strategy,
        "notes": list(trial.notes),
    }


def describe_session(session: SessionEstimate) -> Document:
    """Return the estimate for a session as a document."""
    return {
        "id": session.id,
        "title": session.title,
        "client": f"{session.client} {session.version}".rstrip(),
        "model": session.model,
        "upstream": session.upstream,
        "source": session.source,
        "began_ms": session.began_ms or None,
        "calls": session.calls,
        "tokens": {
            "client": sum(session.client_tokens),
            "sent": sum(session.sent_tokens),
            "output": session.output_tokens,
            "largest_client": max(session.client_tokens, default=0),
            "largest_sent": max(session.sent_tokens, default=0),
        },
        **_describe_costs([session]),
        "is_loss": session.saved.tokens < 0,
        "epochs": [msgspec.to_builtins(each) for each in session.epochs],
        "cut": msgspec.to_builtins(session.cut),
        "errors": session.errors,
        "is_estimate": bool(session.reasons),
        "reasons": list(session.reasons),
        "timeline": {"client": list(session.client_tokens), "sent": list(session.sent_tokens)},
    }


def _describe_costs(sessions: Sequence[SessionEstimate]) -> Document:
    before, after = sum_costs([each.before for each in sessions]), sum_costs([each.after for each in sessions])
    saved = before - after
    return {
        "before": {"tokens": before.tokens, "money": before.money},
        "after": {"tokens": after.tokens, "money": after.money},
        "saved": {"tokens": saved.tokens, "money": saved.money, "share": compute_share(before, after)},
    }
