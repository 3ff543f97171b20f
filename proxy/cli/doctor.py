"""`palimpsest doctor`: whether traffic is managed, and what is wrong if it is not."""

from typing import Annotated

import msgspec
import typer

from proxy.cli.formatting import make_plain
from proxy.cli.serve import UpstreamOption, name_upstream
from proxy.cli.services import READS, Invocation, offers
from proxy.config import load_settings
from proxy.read.findings import Diagnosis, Finding

_LABELS = {"ok": "ok", "warning": "WARNING", "fault": "FAULT"}
_CONCLUSIONS = {
    "ok": "Everything that was examined is as it should be.",
    "warning": "It works; see the warnings.",
    "fault": "Something has no effect, or is broken; see the faults.",
}


@offers("as_json", "admin_token", *READS)
def doctor(
    called: Invocation,
    upstream: UpstreamOption = None,
    live: Annotated[
        bool, typer.Option("--live", help="Also send each upstream a short call, which costs money, and say the price.")
    ] = False,
) -> None:
    """Examine whether traffic is managed, and what is wrong if not."""
    upstreams = None if upstream is None else name_upstream(upstream)
    settings = load_settings(
        called.config, {"data": called.data, "upstreams": upstreams, "server.admin_token": called.admin_token}
    )
    diagnosis = called.services.diagnose(settings, is_live=live)
    if called.as_json:
        typer.echo(msgspec.json.encode(diagnosis).decode())
    else:
        typer.echo(make_plain(format_diagnosis(diagnosis)))
    raise typer.Exit(1 if diagnosis.state == "fault" else 0)


def format_diagnosis(diagnosis: Diagnosis) -> str:
    """Format findings, a line each, with advice below where there is some."""
    lines = [line for finding in diagnosis.findings for line in _format_finding(finding)]
    return "\n".join([*lines, "", f"{_CONCLUSIONS[diagnosis.state]} (palimpsest {diagnosis.version})"])


def _format_finding(finding: Finding) -> list[str]:
    lines = [f"{_LABELS[finding.state]:<8} {finding.name:<12}  {finding.sentence}"]
    return [*lines, f"{'':<23}→ {finding.advice}"] if finding.advice else lines
