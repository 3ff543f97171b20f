"""What the documents say, held against the code."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from starlette.routing import Route
from typer.main import get_command

from proxy import __version__
from proxy.cli.main import build
from proxy.config.reference import format_default, list_keys
from proxy.model.events import BUS_EVENTS, EVENT_TYPES, TOLD, name_type
from proxy.server.api.context import ContextApi
from proxy.server.api.erase import EraseApi
from proxy.server.api.events import EventsApi
from proxy.server.api.memory import MemoryApi
from proxy.server.api.sessions import SessionsApi
from proxy.server.api.turns import TurnsApi
from proxy.telemetry.metric_names import METRICS
from proxy.wire.headers import OWN_PREFIX

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
DOCUMENTS = (README, *(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))))
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
NAMES = sorted(file.parent.name for file in (ROOT / "proxy").glob("*/__init__.py"))
"""The packages in `proxy`."""


def render_settings() -> str:
    """The table of settings as its page has to hold it."""
    rows = [
        f"| `{'.'.join(key.path)}` | `{format_default(key)}` | {key.description} |"
        for key in list_keys()
        if not key.is_section
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def test_the_map_says_something_of_every_package() -> None:
    packages = [file.parent.relative_to(ROOT / "proxy") for file in (ROOT / "proxy").rglob("__init__.py")]
    table = ARCHITECTURE.split("## Packages")[1].split("\n## ")[0]
    rows = re.findall(r"(?m)^\| (`.*?`) \| (.+?) \|", table)
    named = [package for first, _ in rows for package in re.findall(r"`([\w/]+)`", first)]
    assert sorted(named) == sorted("proxy" if path == Path() else path.as_posix() for path in packages)
    assert len(rows) <= 22
    assert [first for first, text in rows if len(text) < 10] == []


def test_the_architecture_fits_on_a_page() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 100


@pytest.mark.parametrize("path", re.findall(rf"`((?:proxy|tests|{'|'.join(NAMES)})/[\w/]+)`", ARCHITECTURE))
def test_files_in_the_text_of_the_architecture_exist(path: str) -> None:
    whole = path if path.startswith(("proxy/", "tests/")) else f"proxy/{path}"
    assert (ROOT / f"{whole}.py").exists() or (ROOT / whole).is_dir()


def test_the_settings_table_is_the_settings_tree() -> None:
    table = re.search(r"(?s)<!-- settings:.*?-->\n(.*?)\n<!-- end of settings -->", PAGES["settings"])
    assert table
    assert table[1] == render_settings()


def test_the_readme_is_read_in_a_minute_and_leads_to_every_page() -> None:
    assert len(README.splitlines()) <= 150
    assert [name for name in PAGES if f"`docs/{name}.md`" not in README] == []


def test_how_it_works_is_read_in_six_minutes() -> None:
    """At 250 words a minute, as people read technical English."""
    assert len(re.findall(r"\w[\w'.-]*", PAGES["how-it-works"])) <= 1_500


def test_the_headline_is_measured() -> None:
    """What README says of the money, by ceiling, is what the replay of twelve sessions has, rounded; a half upwards."""
    results = (ROOT / "benchmarks" / "results" / "step-17-ceilings.md").read_text()
    whole, begun = results.split("## Whole sessions")[1].split("## The first 150 calls")
    for label, ceiling in (("as installed", "128,000"), ("with a ceiling", "32,000")):
        row = rf"(?m)^\| 0\.1 · 1 \| {ceiling} \| ([\d.]+) \|"
        costs = [float(found[1]) for part in (whole, begun) if (found := re.search(row, part))]
        told = re.search(rf"(?m)^\| \**{label}.*?{ceiling} tokens.*?\| \D*(\d+) %\D*\| \D*(\d+) %", README)
        assert told and [int(told[1]), int(told[2])] == [int(cost + 0.5) for cost in costs]


def test_every_command_is_told() -> None:
    commands = get_command(build())
    assert isinstance(commands, typer.core.TyperGroup)
    assert [name for name in commands.commands if f"`{name}`" not in README] == []
    texts = " ".join((README, *PAGES.values()))
    assert [name for name in commands.commands if f"palimpsest {name}" not in texts] == []


def test_every_path_of_our_own_or_read_by_us_is_told() -> None:
    managed = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
    assert [path for path in managed if f"`{path}`" not in PAGES["reference"]] == []
    for path in ("/-/", "/-/live", "/-/ready", "/-/metrics", *list_api()):
        assert f"`{path}`" in PAGES["api"]


def test_every_type_of_event_is_told() -> None:
    told = dict(re.findall(r"(?m)^\| `([A-Z_]+)` \| (.*) \|$", PAGES["events"]))
    kinds = {name_type(kind): kind for kind in TOLD}
    assert told.keys() == kinds.keys() == {*EVENT_TYPES, *BUS_EVENTS}
    common = {"at_ms", "session", "exchange", "n", "run", "operator"}
    fields = {name: {*kind.__struct_fields__} - common for name, kind in kinds.items()}
    assert {
        name: own for name in told if (own := {each for each in fields[name] if f"`{each}`" not in told[name]})
    } == {}


def list_api() -> list[str]:
    """The paths of the API; what is received stands beside what is sent."""
    unused: Any = None
    routes = (
        *SessionsApi(unused, unused, EraseApi(unused), TurnsApi(unused)).list_routes(),
        *ContextApi(unused, unused, unused, unused, unused).list_routes(),
        *MemoryApi(unused, unused, unused, unused).list_routes(),
        *EventsApi(unused, unused).list_routes(),
    )
    paths = [f"/-{route.path}" for route in routes if isinstance(route, Route)]
    return [path for path in paths if not path.endswith("/received")]


def test_what_is_taken_from_requests_is_told() -> None:
    for name in ("Connection", "Keep-Alive", "Proxy-*", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Expect"):
        assert f"`{name}`" in PAGES["reference"]
    assert f"`{OWN_PREFIX.decode()}*`" in PAGES["reference"]


def test_the_glossary_fits_on_a_screen_and_explains_each_term_once() -> None:
    _, _, *terms = re.findall(r"(?m)^\| ?(.+?) ?\|", PAGES["glossary"])
    assert len(terms) <= 40
    assert terms == sorted(set(terms), key=str.casefold)


def test_all_nine_promises_are_told() -> None:
    section = PAGES["how-it-works"].split("## Promises")[1].split("\n## ")[0]
    assert re.findall(r"(?m)^(\d)\. \*\*", section) == list("123456789")


@pytest.mark.parametrize(
    "name",
    [
        *("README.md", "ARCHITECTURE.md", "CHANGELOG.md"),
        *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
    ],
)
def test_files_that_a_document_names_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    named = re.findall(r"`([\w./-]+\.(?:md|toml|yaml|lock|py))`", text)
    assert [file for file in named if not (ROOT / file).exists() and not (ROOT / "proxy" / file).exists()] == []


def test_settings_that_a_document_names_exist() -> None:
    keys = {".".join(key.path) for key in list_keys()}
    sections = {key.partition(".")[0] for key in keys if "." in key}
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:: ?[^`]*)?`", " ".join(DOCUMENTS))
    assert len(named) > 100
    ours = {key for key in named if key.partition(".")[0] in sections and not key.startswith("log.db")}
    assert ours - keys == set()


def test_metrics_that_a_document_names_exist() -> None:
    named = set(re.findall(r"palimpsest_\w+", " ".join(DOCUMENTS))) - {"palimpsest_error", "palimpsest_index_"}
    assert len(named) > 50
    assert {name.removesuffix("_total") for name in named} - {name for _, name, *_ in METRICS} == set()


def test_benchmarks_that_a_document_names_exist() -> None:
    texts = (*DOCUMENTS, (ROOT / "benchmarks" / "README.md").read_text())
    named = {name for text in texts for name in re.findall(r"\bbenchmarks\.(\w+)", text)}
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []


def test_sections_that_a_document_names_exist() -> None:
    """A reference such as `docs/wires.md`, "Bound reasoning", in README, docs, settings and code."""
    files = [
        ROOT / "README.md",
        ROOT / "config.example.yaml",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "proxy").rglob("*.py"),
    ]
    named = {
        (page, " ".join(title.split()))
        for file in files
        for page, title in re.findall(r'`?(docs/[\w/-]+\.md)`?, "([^"\n]+\n?[^"\n]*)"', file.read_text())
    }
    headings = {page: re.findall(r"(?m)^#+ (.*)$", (ROOT / page).read_text()) for page, _ in named}
    assert len(named) > 10
    assert {(page, title) for page, title in named if title.rstrip(",.") not in headings[page]} == set()


def test_the_changelog_knows_this_version() -> None:
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
