"""`palimpsest try`: what the sessions that clients keep cost, and what they would have cost managed; offline."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.formatting import format_count, format_table, make_plain, shorten
from proxy.cli.services import Invocation, offers
from proxy.config import load_settings
from proxy.context.pricing import Cost
from proxy.engine.recorded.documents import write_json
from proxy.trial.estimate import SessionEstimate, Trial, compute_share, describe_trial, sum_costs
from proxy.trial.page import write_page
from proxy.trial.words import format_amount, format_share, format_short, list_remarks, tell_trial

_HEADINGS = ("SESSION", "CLIENT", "MODEL", "CALLS", "TOKENS", "MANAGED", "COST", "MANAGED", "SAVED")
_TITLE_WIDTH, _MODEL_WIDTH = 30, 20
_ESTIMATED = "*"


@offers("as_json", "config")
def try_(
    called: Invocation,
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="[PATH]...", help="Transcripts, or directories of them.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many sessions at most, the newest.")] = 50,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write a page.")] = None,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the logs of the replay there.")] = None,
    ceiling: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Most tokens of a request. [default: as in the settings]")
    ] = None,
) -> None:
    """Estimate what managing would have saved.

    Reads the transcripts of clients, offline. Without a PATH those of Claude Code, codex, opencode, qwen-code, cline
    and aider are sought where they keep them.
    """
    settings = load_settings(called.config, {"budget.ceiling_tokens": ceiling})
    found: Trial = called.services.run_trial(settings, paths or [], limit, keep, _show_progress)
    if sys.stderr.isatty():
        typer.echo("\r\033[K", nl=False, err=True)
    if report is not None:
        report.write_text(write_page(found), "utf-8")
    typer.echo(
        write_json(describe_trial(found)) if called.as_json else make_plain(format_trial(found)), nl=not called.as_json
    )
    if report is not None and not called.as_json:
        typer.echo(f"\nThe page: {report}")


def _show_progress(done: int, whole: int) -> None:
    """Draw a bar on a terminal."""
    if sys.stderr.isatty():
        filled = 30 * done // max(1, whole)
        typer.echo(f"\r\033[K[{'=' * filled}{' ' * (30 - filled)}] {done:,} of {whole:,} calls", nl=False, err=True)


def format_trial(trial: Trial) -> str:
    """Format the result: a sentence, a table with a row for each session and one for all, and what is to be known."""
    rows = [_make_row(each) for each in trial.sessions]
    if len(rows) > 1:
        rows.append(_make_total(trial))
    lines = [
        tell_trial(trial),
        "",
        format_table(_HEADINGS, rows),
        *(["", *remarks] if (remarks := [*_tell(trial)]) else []),
    ]
    return "\n".join(lines)


def _make_row(session: SessionEstimate) -> tuple[str, ...]:
    sign = _ESTIMATED if session.reasons else ""
    title = shorten(session.title or session.id, _TITLE_WIDTH - len(sign)) + sign
    return (
        title,
        session.client,
        shorten(session.model or "-", _MODEL_WIDTH),
        str(session.calls),
        format_short(sum(session.client_tokens)),
        format_short(sum(session.sent_tokens)),
        *_make_costs(session.before, session.after),
    )


def _make_total(trial: Trial) -> tuple[str, ...]:
    sessions = trial.priced or trial.sessions
    costs = _make_costs(*(sum_costs([getattr(each, name) for each in sessions]) for name in ("before", "after")))
    counts = (sum(sum(getattr(each, name)) for each in trial.sessions) for name in ("client_tokens", "sent_tokens"))
    calls = sum(each.calls for each in trial.sessions)
    return (format_count(len(trial.sessions), "session"), "", "", str(calls), *map(format_short, counts), *costs)


def _make_costs(before: Cost, after: Cost) -> tuple[str, str, str]:
    return format_amount(before), format_amount(after), format_share(compute_share(before, after))


def _tell(trial: Trial) -> list[str]:
    lines = [*list_remarks(trial)]
    if any(each.reasons for each in trial.sessions):
        reasons = dict.fromkeys(reason for each in trial.sessions for reason in each.reasons)
        lines.append(f"{_ESTIMATED} Only an estimate:")
        lines += [f"  {reason}." for reason in reasons]
    return lines
