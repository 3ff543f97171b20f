"""`palimpsest savings`. Rule: read the log beside a running server; `--json` says all the text does."""

import typer

from proxy.cli.doors import Doors
from proxy.cli.options import ConfigOption, DataOption, JsonOption
from proxy.cli.text import lay_out, write_time
from proxy.config import Settings
from proxy.engine.ports import LogReader
from proxy.engine.reports.documents import write_json
from proxy.engine.reports.savings import Arm, Savings, Unit, describe_savings, load_savings

_HEADINGS = ("", "SESSIONS", "COST")
_UNITS: dict[Unit, str] = {
    "money": "money for a million tokens of the client's requests",
    "tokens": "tokens of uncached input for a token of the client's requests",
}


def savings(
    context: typer.Context, as_json: JsonOption = False, data: DataOption = None, config: ConfigOption = None
) -> None:
    """Compare sessions that are managed with those only observed."""
    doors: Doors = context.obj

    async def ask(log: LogReader, settings: Settings) -> Savings:
        return await load_savings(log, await doors.measure(settings))

    found = doors.read_by(data, config, ask)
    if as_json:
        typer.echo(write_json(describe_savings(found)), nl=False)
    else:
        typer.echo(tell_savings(found))


def tell_savings(found: Savings) -> str:
    """What is saved and how sure that is, both arms, and what was not counted."""
    rows = [_describe_arm(name, arm, found.unit) for name, arm in _list_arms(found)]
    lines = [_conclude(found)]
    if found.since_ms is not None:
        lines += ["", lay_out(_HEADINGS, rows), f"Cost is in {_UNITS[found.unit]}.", *_list_remarks(found)]
    return "\n".join(lines)


def _list_arms(found: Savings) -> tuple[tuple[str, Arm], ...]:
    return ("managed", found.managed), ("only observed", found.held_out)


def _describe_arm(name: str, arm: Arm, unit: Unit) -> tuple[object, ...]:
    scale = 1e6 if unit == "money" else 1.0
    return name, arm.sessions, "-" if arm.cost is None else f"{scale * arm.cost:.4f}"


def _conclude(found: Savings) -> str:
    known = found.comparison
    if known is None:
        return f"{found.reason[0].upper()}{found.reason[1:]}."
    return (
        f"Managing saves {known.saving:.1%} of what long sessions cost; with a chance of 95 % it is between"
        f" {known.low:.1%} and {known.high:.1%}."
    )


def _list_remarks(found: Savings) -> list[str]:
    since = write_time(found.since_ms or 0)
    remarks = [f"Sessions since {since}, without {found.short} that did not come up to the soft mark."]
    if found.mixed:
        remarks.append(f"{found.mixed} were first the one, then the other: they are not counted.")
    if blind := found.managed.blind + found.held_out.blind:
        remarks.append(f"Of {blind} nobody told what was read from a cache: all of it counts as new.")
    return remarks
