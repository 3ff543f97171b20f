"""`palimpsest revert`, `pin`, `unpin` and `compact`: change what is sent of a session.

The server that runs on the data directory does it, because it alone writes the log.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer

from proxy.cli.inspection.naming import find_for_server
from proxy.cli.services import (
    ASKS,
    MAX_NUMBER,
    Invocation,
    ServerRefused,
    Services,
    SessionArgument,
    ask,
    find_reason,
    list_items,
    offers,
    parse_object,
)
from proxy.cli.terminal import (
    PLAIN,
    Column,
    Screen,
    find_screen,
    format_money,
    format_tokens,
    make_plain,
    render_table,
    wrap,
    write,
)
from proxy.config import Settings
from proxy.engine.recorded.documents import write_json
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.exchange import Usage

_NODE_DIGITS = 10
_EDITS = {
    "kept": "kept as they are",
    "tombstone": "with a marker for a tool's output",
    "file": "with an outline",
    "shortened": "shortened",
    "detached": "without its calls",
    "written": "of ours (ledger, summary or memory)",
}
_PIN_COLUMNS = (
    Column("PIN"),
    Column("CALL", is_number=True),
    Column("MESSAGE", is_number=True),
    Column("ROLE"),
    Column("TOKENS", is_number=True),
    Column("TEXT", least=20),
)

CallArgument = Annotated[
    int | None, typer.Argument(metavar="N", min=1, max=MAX_NUMBER, help="The call that has the message, from 1.")
]
PlaceArgument = Annotated[
    int | None,
    typer.Argument(
        metavar="PLACE", min=0, help="The message's place in it, from 0 after the system prompt. [default: the newest]"
    ),
]
NewestOption = Annotated[bool, typer.Option("--newest", help="The newest message of the session, or of --branch.")]
TipOption = Annotated[str, typer.Option("--branch", metavar="BRANCH", help="With --newest: the branch, by its id.")]


@offers("as_json", *ASKS)
def revert(
    called: Invocation,
    session: SessionArgument,
    epoch: Annotated[
        int | None,
        typer.Argument(
            metavar="EPOCH", min=1, max=MAX_NUMBER, help="Which one, as `epochs` counts. [default: the newest]"
        ),
    ] = None,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and change nothing.")] = False,
) -> None:
    """Undo an epoch: send again what it replaced."""
    settings, services = called.load_server_settings(), called.services
    session = find_for_server(called, session)
    n = _find_epoch(services, settings, session, epoch)
    query = {"dry_run": "true"} if is_dry else {}
    content, found = ask(services, settings, f"/sessions/{session}/epochs/{n}/revert", method="POST", query=query)
    if called.as_json:
        typer.echo(content, nl=False)
        return
    price = found["price"]
    amounts = (
        None if called.host is not None else _find_amounts(services, settings, session, (price["once"], price["each"]))
    )
    typer.echo(format_reversion(found, n, amounts or (None, None), find_screen()))


def _find_epoch(services: Services, settings: Settings, session: str, n: int | None) -> int:
    """Return the number of an epoch that there is, by default of the newest that is no revert itself."""
    _, document = ask(services, settings, f"/sessions/{session}/epochs")
    reasons: dict[int, str] = {each["n"]: each["why"] for each in list_items(document)}
    if not reasons:
        raise NotFound("this session has no epoch, so all is sent as its client sends it; there is nothing to undo")
    if n is not None and n not in reasons:
        raise NotFound(f"this session has no epoch {n}; `palimpsest epochs SESSION` lists its {len(reasons)}")
    return n or max([each for each, why in reasons.items() if why != "revert"], default=max(reasons))


def _find_amounts(
    services: Services, settings: Settings, session: str, tokens: Sequence[float]
) -> Sequence[float | None] | None:
    """Return what tokens of uncached input cost in money; None where the server's log cannot be read here."""

    async def find() -> Sequence[float | None]:
        log = services.open_log(settings)
        try:
            row, prices = await log.find_session(session), (await services.load_savings_inputs(settings)).prices
        finally:
            await log.close()
        signs = [-1 if each < 0 else 1 for each in tokens]
        costs = [prices.price(row.upstream, row.model, Usage(input=round(abs(each)))).money for each in tokens]
        return [None if cost is None else sign * cost for sign, cost in zip(signs, costs, strict=True)]

    try:
        return asyncio.run(find())
    except (NotFound, StoreUnavailable):
        return None


def format_reversion(
    found: Mapping[str, Any], n: int, amounts: Sequence[float | None] = (None, None), screen: Screen = PLAIN
) -> str:
    """Format a revert, or what it would cost. `amounts` are its prices in money: once, and with each later call."""
    then, now = format_tokens(found["tokens_then"]), format_tokens(found["tokens_now"])
    verb = f"Epoch {n} is reverted: the next call sends" if found["is_done"] else f"Reverting epoch {n} would send"
    prices = (found["price"]["once"], found["price"]["each"])
    once, each = (_format_price(price, money) for price, money in zip(prices, amounts, strict=True))
    lines = [
        f"{verb} {then} tokens in place of {now}.",
        f"That costs {once} more with the next call, and {each} more with each later one.",
    ]
    if found["is_lasting"]:
        lines.append("It lasts until a request reaches the end of its budget; then an epoch opens again.")
    else:
        lines.append("So much does not fit the budget: an epoch opens again with the next call.")
    if not found["is_done"]:
        lines.append("Nothing was changed. Without --dry-run it is done.")
    return "\n".join(wrap(line, screen.width) for line in lines)


def _format_price(tokens: float, money: float | None) -> str:
    said = f"{format_tokens(tokens)} tokens of uncached input"
    return said if money is None else f"{format_money(money)} ({said})"


@offers("as_json", *ASKS)
def pin(
    called: Invocation,
    session: SessionArgument,
    n: CallArgument = None,
    place: PlaceArgument = None,
    newest: NewestOption = False,
    branch: TipOption = "",
) -> None:
    """Keep a message word for word, or list those that are kept."""
    settings, services = called.load_server_settings(), called.services
    session = find_for_server(called, session)
    path, chosen = f"/sessions/{session}/pins", _choose_message(n, place, branch, newest=newest)
    if chosen:
        content, found = ask(services, settings, path, method="POST", query=chosen)
        text = f"Pinned. {format_pins([found])}\n\nIt is sent word for word from the next epoch on."
    else:
        content, found = ask(services, settings, path)
        text = format_pins(list_items(found), find_screen())
    if called.as_json:
        typer.echo(content if chosen else write_json(list_items(found)), nl=False)
    else:
        write(text, find_screen())


@offers("as_json", *ASKS)
def unpin(
    called: Invocation,
    session: SessionArgument,
    name: Annotated[str, typer.Argument(metavar="PIN", help="The pin, as `pin SESSION` lists it.")] = "",
    newest: NewestOption = False,
    branch: TipOption = "",
) -> None:
    """Keep a pinned message word for word no longer."""
    settings, services = called.load_server_settings(), called.services
    session = find_for_server(called, session)
    path = f"/sessions/{session}/pins"
    if newest == bool(name):
        raise typer.BadParameter("say which: a PIN as `palimpsest pin SESSION` lists it, or --newest")
    chosen = (
        _choose_message(None, None, branch, newest=True)
        if newest
        else {"node": _find_pin(services, settings, path, name)}
    )
    _, found = ask(services, settings, path, method="DELETE", query=chosen)
    left = list_items(found)
    typer.echo(write_json(left) if called.as_json else f"Unpinned. {format_pins(left)}", nl=not called.as_json)


def _choose_message(n: int | None, place: int | None, branch: str, *, newest: bool) -> dict[str, str]:
    """Return the API's parameters for the message that is meant; empty if none is named."""
    if n is not None and newest:
        raise typer.BadParameter("choose one of N and --newest")
    if branch and not newest:
        raise typer.BadParameter("needs --newest", param_hint="--branch")
    if newest:
        return {"newest": "true"} | ({"branch": branch} if branch else {})
    if n is None:
        return {}
    return {"exchange": str(n)} | ({} if place is None else {"place": str(place)})


def _find_pin(services: Services, settings: Settings, path: str, name: str) -> str:
    """Return the node of the one pin that begins like this."""
    nodes: list[str] = [each["node"] for each in list_items(ask(services, settings, path)[1])]
    found = [node for node in nodes if node.startswith(name.lower())]
    if len(found) != 1:
        listed = ", ".join(node[:_NODE_DIGITS] for node in nodes) or "none"
        how = "no pin begins" if not found else f"{len(found)} pins begin"
        raise NotFound(f"{how} with {name[:40]!r}; the pins of this session are: {listed}")
    return found[0]


def format_pins(found: Sequence[Mapping[str, Any]], screen: Screen = PLAIN) -> str:
    """Format pinned messages, with how many tokens they keep."""
    if not found:
        return "No message is pinned. `palimpsest pin SESSION N PLACE` pins one, `--newest` the newest."
    tokens = sum(each["tokens"] or 0 for each in found)
    many = "1 message is" if len(found) == 1 else f"{len(found)} messages are"
    rows = [
        (each["node"][:_NODE_DIGITS], each["exchange"], each["place"], each["role"], each["tokens"], each["text"])
        for each in found
    ]
    return f"{many} sent word for word: {format_tokens(tokens)} tokens.\n\n{render_table(_PIN_COLUMNS, rows, screen)}"


@offers("as_json", *ASKS)
def compact(
    called: Invocation,
    session: SessionArgument,
    model: Annotated[str, typer.Option(help="The model that writes the summary. [default: as in the settings]")] = "",
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="The instruction to it. [default: as in the settings]")
    ] = "",
    level: Annotated[
        int, typer.Option(min=1, max=3, help="1: a full report; 2: a short one; 3: one made without a model.")
    ] = 1,
    view: Annotated[
        str, typer.Option(metavar="MODEL", help="The conversation with this model. [default: the newest]")
    ] = "",
    branch: Annotated[
        str, typer.Option(metavar="BRANCH", help="The branch: its id or a prefix of it. [default: the newest]")
    ] = "",
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
) -> None:
    """Summarise a session now, by the running server."""
    settings, services = called.load_server_settings(), called.services
    options = {"model": model, "prompt": prompt, "level": level, "view": view, "branch": branch}
    id = find_for_server(called, session)
    asked: dict[str, Any] = {"method": "POST", "query": {"dry_run": "true"}} if is_dry else {}
    status, content = services.ask_server(settings, f"/sessions/{id}/compact", msgspec.json.encode(options), **asked)
    response = parse_object(content)
    if "session" not in response:
        raise ServerRefused(find_reason(status, response))
    if called.as_json:
        typer.echo(content, nl=False)
    elif is_dry:
        typer.echo(make_plain(format_preview(response, find_screen())))
    else:
        typer.echo(make_plain(format_compaction(response)))


def format_preview(found: Mapping[str, Any], screen: Screen = PLAIN) -> str:
    """Format the epoch that would open: the sizes, what would go by its kind, the price, and what it would save."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for edit in found["edits"]:
        kinds.setdefault(edit["edit"], []).append(edit)
    gone = [side for change in found["diff"] for side in change["client"]]
    tokens = format_tokens(sum(each["tokens"] for each in gone))
    edits = ", ".join(f"{len(edits)} {_EDITS[kind]}" for kind, edits in kinds.items()) or "nothing in its place"
    before, after = format_tokens(found["tokens_before"]), format_tokens(found["tokens_after"])
    cost, saving = (_format_price(found[name]["tokens"], found[name]["money"]) for name in ("cost", "saving"))
    lines = [
        f"Compacting would send {after} tokens in place of {before}.",
        f"Of the client's first {found['depth']} messages {len(gone)} would not go out as they are ({tokens} tokens).",
        f"In place of all there would be {edits}.",
        f"That costs {cost} once, and saves {saving} with each call after it.",
        found["explanation"],
        "Nothing was changed. Without --dry-run it is done; `palimpsest pin` keeps a message word for word.",
    ]
    return "\n".join(wrap(line, screen.width) for line in lines)


def format_compaction(found: dict[str, Any]) -> str:
    """Format the result of a compaction, as the server's API describes it."""
    if found["epoch"]:
        sizes = f"{found['tokens_before']:,} to {found['tokens_after']:,} tokens"
        lines = [f"compacted {sizes}, from the next call on (epoch {found['epoch']})"]
    else:
        lines = [f"kept      {found['tokens_before']:,} tokens: no epoch was opened"]
    if found["summary"]:
        covered = f"{found['messages_covered']} messages"
        lines.append(f"summary   {found['summary']} of {covered}: level {found['level']}, {found['kind']}")
    if found["calls"]:
        lines.append(f"calls     {len(found['calls'])}, for {found['cost_tokens']:,} tokens of uncached input")
    if found["reason"]:
        lines.append(f"note      {found['reason']}")
    return "\n".join([*lines, f"took      {found['ms'] / 1000:.1f} s"])
