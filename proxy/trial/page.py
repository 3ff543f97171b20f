"""The report of a trial as one page that needs nothing else: no script, no network, light and dark.

Solid is what would have been sent, hatched what would have been held back and stays in the log.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from proxy.context.pricing import Cost
from proxy.read.timeline import explain_reason
from proxy.trial.estimate import SessionEstimate, Trial, compute_share, sum_costs
from proxy.trial.words import (
    format_amount,
    format_share,
    format_short,
    list_remarks,
    tell_session,
    tell_trial,
)

STYLE_PATH = Path(__file__).with_name("report.css")

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 240, 52, 22, 24
_BAR_WIDTH, _BAR_HEIGHT = 160, 12
_MOST_POINTS = 480  # more calls than the chart has room for are drawn by the largest of each few
_LINES = 4
_MOST_CHARTS = 30
_HATCH = (
    '<svg width="0" height="0" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6" '
    'patternUnits="userSpaceOnUse"><path class="hatching" d="M-1 1 1-1M0 6 6 0M5 7 7 5"/></pattern></defs></svg>'
)
_KEY = (
    '<p class="key">'
    '<span><svg viewBox="0 0 12 12"><rect class="sent" width="12" height="12"/></svg>would be sent</span>'
    '<span><svg viewBox="0 0 12 12"><rect class="held" width="12" height="12"/></svg>held back, in the log</span>'
    '<span><svg viewBox="0 0 12 12"><path class="sign" d="M6 1 11 11H1Z"/></svg>epoch opened</span></p>'
)


def write_page(trial: Trial) -> str:
    """Return the page."""
    style = STYLE_PATH.read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>What managing would save · palimpsest</title>\n<style>{style}</style>\n</head>\n<body>\n{_HATCH}\n"
        '<header><p class="mark">palimpsest<span></span></p></header>\n'
        f"<main>\n{''.join(_list_parts(trial))}</main>\n</body>\n</html>\n"
    )


def _list_parts(trial: Trial) -> Iterator[str]:
    yield f'<div><h1>What managing would save</h1><p class="lead">{_clean(tell_trial(trial))}</p></div>\n'
    yield _draw_strip(trial)
    yield _draw_table(trial)
    yield (
        '<section class="panel" aria-labelledby="k"><h2 id="k">What to know of these figures</h2><ul class="remarks">'
        f"{''.join(f'<li>{_clean(remark)}</li>' for remark in list_remarks(trial))}</ul></section>\n"
    )
    shown = [(n, each) for n, each in enumerate(trial.sessions) if each.epochs][:_MOST_CHARTS]
    yield from (_draw_session(each, n) for n, each in shown)


def _draw_strip(trial: Trial) -> str:
    sessions = trial.priced or trial.sessions
    before, after = (sum_costs([getattr(each, name) for each in sessions]) for name in ("before", "after"))
    client, sent = (sum(sum(getattr(s, name)) for s in trial.sessions) for name in ("client_tokens", "sent_tokens"))
    share, lost = compute_share(before, after), before.tokens < after.tokens
    items = (
        ("Cost, as it was", format_amount(before), f"{len(sessions)} sessions", ""),
        ("Cost, managed", format_amount(after), "by the same prices", ""),
        (
            "Lost" if lost else "Saved",
            _format_saved(before - after),
            f"{format_share(share)} of the cost",
            "bad" if lost else "good",
        ),
        ("Input, as it was → managed", f"{format_short(client)} → {format_short(sent)}", "tokens, over all calls", ""),
    )
    cells = "".join(
        f'<div><dt>{title}</dt><dd class="big {kind}">{_clean(figure)}</dd><dd class="sub">{_clean(note)}</dd></div>'
        for title, figure, note, kind in items
    )
    return f'<dl class="strip" aria-label="All sessions">{cells}</dl>\n'


def _format_saved(saved: Cost) -> str:
    if saved.money is None:
        return format_amount(Cost(abs(saved.tokens), None))
    return format_amount(Cost(abs(saved.tokens), abs(saved.money)))


def _draw_table(trial: Trial) -> str:
    most = max((sum(each.client_tokens) for each in trial.sessions), default=1)
    rows = "".join(_draw_row(n, each, most) for n, each in enumerate(trial.sessions))
    head = "".join(
        f'<th scope="col"{kind}>{title}</th>'
        for title, kind in (
            ("Session", ""),
            ("Client", ""),
            ("Model", ""),
            ("Calls", ' class="n"'),
            ("Input tokens", ""),
            ("Cost", ' class="n"'),
            ("Managed", ' class="n"'),
            ("Saved", ' class="n"'),
        )
    )
    return (
        '<section class="panel" aria-labelledby="s"><h2 id="s">Sessions</h2>'
        f'{_KEY}<div class="scroll" tabindex="0" role="region" aria-labelledby="s">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>\n"
    )


def _draw_row(n: int, session: SessionEstimate, most: int) -> str:
    share = compute_share(session.before, session.after)
    title = _clean(session.title or session.id)
    named = f'<a href="#session-{n}">{title}</a>' if session.epochs else title
    reason = (
        f'<br><span class="note">Only an estimate: {_clean("; ".join(session.reasons))}.</span>'
        if session.reasons
        else ""
    )
    client, sent = sum(session.client_tokens), sum(session.sent_tokens)
    kind = " bad" if session.saved.tokens < 0 else ""
    cells = (
        f"<td>{named}{reason}</td><td>{_clean(f'{session.client} {session.version}'.strip())}</td>"
        f'<td>{_clean(session.model or "unknown")}</td><td class="n">{session.calls:,}</td>'
        f'<td><div class="duo">{_draw_bar(client, sent, most)}</div>'
        f'<span class="note">{format_short(client)} → {format_short(sent)}</span></td>'
        f'<td class="n">{format_amount(session.before)}</td><td class="n">{format_amount(session.after)}</td>'
        f'<td class="n{kind}">{format_share(share)}</td>'
    )
    return f"<tr>{cells}</tr>"


def _draw_bar(client: int, sent: int, most: int) -> str:
    whole, part = (round(_BAR_WIDTH * tokens / max(1, most), 1) for tokens in (client, min(client, sent)))
    return (
        f'<svg viewBox="0 0 {_BAR_WIDTH} {_BAR_HEIGHT}" role="img" aria-label="{sent:,} of {client:,} tokens sent">'
        f'<rect class="held" width="{whole}" height="{_BAR_HEIGHT}"/>'
        f'<rect class="sent" width="{part}" height="{_BAR_HEIGHT}"/></svg>'
    )


def _draw_session(session: SessionEstimate, n: int) -> str:
    began = ""
    if session.began_ms:
        began = f", {datetime.fromtimestamp(session.began_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    facts = (
        f"{session.client} {session.version}".strip()
        + f", {session.model or 'unknown model'}, {session.calls:,} calls{began}"
    )
    rows = "".join(
        f'<tr><td>Epoch {each.n}</td><td class="n">call {each.call:,}</td>'
        f"<td>{_clean(explain_reason(each.why))}</td>"
        f'<td class="n">{each.tokens_before:,} → {each.tokens_after:,} tokens</td></tr>'
        for each in session.epochs
    )
    return (
        f'<section class="panel" id="session-{n}" aria-labelledby="t{n}">'
        f'<h2 id="t{n}">{_clean(session.title or session.id)}</h2>'
        f'<p class="note">{_clean(facts)}</p><p>{_clean(tell_session(session))}</p>{_draw_chart(session)}'
        f"<details><summary>What opened each epoch</summary><table><tbody>{rows}</tbody></table></details>"
        f'<p class="note mono">{_clean(session.source)}</p></section>\n'
    )


def _draw_chart(session: SessionEstimate) -> str:
    """Draw the tokens of each call: hatched as they were, solid as they would have been sent."""
    step = -(-len(session.client_tokens) // _MOST_POINTS)
    client, sent = (_thin(tokens, step) for tokens in (session.client_tokens, session.sent_tokens))
    most = _round_up(max((*client, *sent, 1)))
    right, floor = _WIDTH - 8, _HEIGHT - _BOTTOM
    across = (right - _LEFT) / max(1, len(client) - 1)

    def draw(tokens: Sequence[int], kind: str) -> str:
        points = " ".join(
            f"{_LEFT + i * across:.1f},{floor - (floor - _TOP) * value / most:.1f}" for i, value in enumerate(tokens)
        )
        end = _LEFT + (len(tokens) - 1) * across
        return f'<polygon class="{kind}" points="{_LEFT},{floor} {points} {end:.1f},{floor}"/>'

    lines = "".join(
        f'<line class="rule" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{format_short(most * k / _LINES)}</text>'
        for k in range(_LINES + 1)
        for y in [floor - (floor - _TOP) * k / _LINES]
    )
    signs = "".join(
        f'<line class="epoch" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{floor}"/>'
        f'<path class="sign" d="M{x:.1f} {_TOP - 14} {x + 5:.1f} {_TOP - 5} {x - 5:.1f} {_TOP - 5}Z"/>'
        for epoch in session.epochs
        for x in [_LEFT + max(0, epoch.call - 1) / step * across]
    )
    largest = f"at most {max(session.client_tokens):,}, managed {max(session.sent_tokens):,}"
    label = f"Input tokens of {session.calls} calls: {largest}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{lines}{draw(client, "held")}'
        f'{draw(sent, "sent")}{signs}<text x="{_LEFT}" y="{_HEIGHT - 6}">call 1</text>'
        f'<text x="{right}" y="{_HEIGHT - 6}" text-anchor="end">{session.calls:,}</text></svg>'
    )


def _thin(tokens: Iterable[int], step: int) -> list[int]:
    known = list(tokens)
    return [max(known[i : i + step]) for i in range(0, len(known), step)]


def _round_up(value: int) -> int:
    """Return the next number of one digit and zeros that four lines divide well."""
    unit: int = 10 ** max(0, len(str(value)) - 1)
    return next(unit * k // 10 for k in (12, 16, 20, 24, 32, 40, 48, 60, 80, 100, 120) if unit * k // 10 >= value)


def _clean(text: str) -> str:
    """Return a text for HTML, without characters that control a terminal or turn the direction of writing."""
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
