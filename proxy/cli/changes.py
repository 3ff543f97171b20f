"""`palimpsest revert`, `pin` and `unpin`: change what is sent of a session.

The server that runs on the data directory does it, because it alone writes the log.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer

from proxy.cli.naming import find_for_server
from proxy.cli.serve import find_reason
from proxy.cli.services import (
    MAX_NUMBER,
    ConfigOption,
    DataOption,
    HostOption,
    JsonOption,
    PortOption,
    Services,
    SessionArgument,
    TokenOption,
    load_server_settings,
)
from proxy.cli.terminal import (
    PLAIN,
    Column,
    Screen,
    find_screen,
    format_money,
    format_tokens,
    render_table,
    write,
)
from proxy.config import Settings
from proxy.model.errors import NotFound, ProxyError

_NODE_DIGITS = 10
_FAILED = 400
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
TipOption = Annotated[str, typer.Option("--branch", metavar="TIP", help="With --newest: the branch, by its tip.")]


class ServerRefused(ProxyError):
    """The server did not do it; the message says why."""


def ask(
    services: Services, settings: Settings, path: str, *, method: str = "GET", query: Mapping[str, str] | None = None
) -> tuple[bytes, Any]:
    """Return what the running server's API responds, as bytes and as a document. Raises ServerRefused."""
    status, content = services.ask_server(settings, path, b"", method=method, query=query or {})
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError:
        document = None
    if status >= _FAILED or not isinstance(document, dict | list):
        raise ServerRefused(find_reason(status, document if isinstance(document, dict) else {}))
    return content, document


def list_items(document: Any) -> Sequence[dict[str, Any]]:
    """Return the items of a listing of the API."""
    items: Sequence[dict[str, Any]] = document["items"] if isinstance(document, dict) else document
    return items


def revert(
    context: typer.Context,
    session: SessionArgument,
    epoch: Annotated[
        int | None,
        typer.Argument(
            metavar="EPOCH", min=1, max=MAX_NUMBER, help="Which one, as `epochs` counts. [default: the newest]"
        ),
    ] = None,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and change nothing.")] = False,
    as_json: JsonOption = False,
    host: HostOption = None,
    port: PortOption = None,
    admin_token: TokenOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Undo an epoch: send again what it replaced."""
    settings = load_server_settings(config, data, host, port, admin_token)
    services: Services = context.obj
    session = find_for_server(services, data, config, host, session)
    n = epoch or _find_newest(services, settings, session)
    query = {"dry_run": "true"} if is_dry else {}
    content, found = ask(services, settings, f"/sessions/{session}/epochs/{n}/revert", method="POST", query=query)
    typer.echo(content if as_json else format_reversion(found, n), nl=not as_json)


def _find_newest(services: Services, settings: Settings, session: str) -> int:
    """Return the number of the newest epoch that is no revert itself."""
    _, document = ask(services, settings, f"/sessions/{session}/epochs")
    numbers: list[int] = [each["n"] for each in list_items(document) if each["why"] != "revert"]
    if not numbers:
        raise NotFound(
            "this session has no epoch, so everything is sent as its client sends it; there is nothing to undo"
        )
    return max(numbers)


def format_reversion(found: Mapping[str, Any], n: int) -> str:
    """Format a revert, or what it would cost."""
    then, now = format_tokens(found["tokens_then"]), format_tokens(found["tokens_now"])
    verb = "Epoch {n} is reverted: the next call sends" if found["is_done"] else "Reverting epoch {n} would send"
    lines = [f"{verb.format(n=n)} {then} tokens in place of {now}."]
    price = found["price"]
    once, each = (_format_price(price, name) for name in ("once", "each"))
    lines.append(f"That costs {once} more with the next call, and {each} more with each later one.")
    if found["is_lasting"]:
        lines.append("It lasts until a request reaches the end of its budget; then an epoch opens again.")
    else:
        lines.append("So much does not fit the budget: an epoch opens again with the next call.")
    if not found["is_done"]:
        lines.append("Nothing was changed. Without --dry-run it is done.")
    return "\n".join(lines)


def _format_price(price: Mapping[str, Any], name: str) -> str:
    money = price.get(f"{name}_money")
    tokens = f"{format_tokens(price[name])} tokens of uncached input"
    return tokens if money is None else f"{format_money(money)} ({tokens})"


def pin(
    context: typer.Context,
    session: SessionArgument,
    n: CallArgument = None,
    place: PlaceArgument = None,
    newest: NewestOption = False,
    branch: TipOption = "",
    as_json: JsonOption = False,
    host: HostOption = None,
    port: PortOption = None,
    admin_token: TokenOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Keep a message word for word, or list those that are kept."""
    settings = load_server_settings(config, data, host, port, admin_token)
    services: Services = context.obj
    session = find_for_server(services, data, config, host, session)
    path, chosen = f"/sessions/{session}/pins", _choose_message(n, place, branch, newest=newest)
    if chosen:
        content, found = ask(services, settings, path, method="POST", query=chosen)
        text = f"Pinned. {format_pins([found])}\n\nIt is sent word for word from the next epoch on."
    else:
        content, found = ask(services, settings, path)
        text = format_pins(list_items(found), find_screen())
    if as_json:
        typer.echo(content, nl=False)
    else:
        write(text, find_screen())


def unpin(
    context: typer.Context,
    session: SessionArgument,
    name: Annotated[str, typer.Argument(metavar="[PIN]", help="The pin, as `pin SESSION` lists it.")] = "",
    newest: NewestOption = False,
    branch: TipOption = "",
    as_json: JsonOption = False,
    host: HostOption = None,
    port: PortOption = None,
    admin_token: TokenOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Keep a pinned message word for word no longer."""
    settings = load_server_settings(config, data, host, port, admin_token)
    services: Services = context.obj
    session = find_for_server(services, data, config, host, session)
    path = f"/sessions/{session}/pins"
    if newest == bool(name):
        raise typer.BadParameter("say which: a PIN as `palimpsest pin SESSION` lists it, or --newest")
    chosen = (
        _choose_message(None, None, branch, newest=True)
        if newest
        else {"node": _find_pin(services, settings, path, name)}
    )
    content, found = ask(services, settings, path, method="DELETE", query=chosen)
    typer.echo(content if as_json else f"Unpinned. {format_pins(list_items(found))}", nl=not as_json)


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
