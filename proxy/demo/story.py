"""The session of the demonstration: what the user asks, and what the agent says and calls, step by step."""

from collections.abc import Iterator, Mapping, Sequence

from proxy.demo.workspace import (
    CARRIERS,
    NEW_ADDING,
    NEW_DAYS,
    NEW_IMPORTS,
    NIGHT_TEST,
    OLD_ADDING,
    OLD_DAYS,
    OLD_IMPORTS,
    CarrierFacts,
    name_class,
)
from proxy.lab.session import ScriptedStep, ScriptedTurn
from proxy.wire.rounds import OwnTool

_SYSTEM = """\
You are a coding agent that works in a repository by tools. Work in small steps: read before you edit, run the tests
after each change, and say in a sentence what you found before you call the next tool. Do only what was asked. When
you are done, tell the user what you changed and how it was checked, in a few lines. Never invent the output of a
tool; if something cannot be known from here, say so. Paths are relative to the root of the repository."""


def write_system(files: Mapping[str, str]) -> str:
    """Return the system prompt, with what the repository says of itself, as clients add it."""
    notes = "\n\n".join(f"# {path}\n\n{files[path]}" for path in ("README.md", "docs/days.md"))
    return f"{_SYSTEM}\n\nThe repository says:\n\n{notes}"


def make_tools(*, has_tracker: bool) -> list[OwnTool]:
    """Return the tools of the agent. In the midst of the session the user connects the issue tracker as one more."""
    tools = [
        _make_tool("read_file", "Read a file, or some lines of it.", path="string", start="integer", end="integer"),
        _make_tool("search", "Search the lines of all files below a path.", pattern="string", path="string"),
        _make_tool("edit_file", "Replace a text that is in a file once.", path="string", old="string", new="string"),
        _make_tool("run", "Run a command in the root of the repository.", command="string"),
    ]
    return [*tools, _make_tool("tracker", "Read a ticket of the tracker.", ticket="string")] if has_tracker else tools


def _make_tool(name: str, description: str, **parameters: str) -> OwnTool:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": [next(iter(parameters))]}
    return OwnTool(name, description, schema)


def list_turns() -> list[ScriptedTurn]:
    """Return the session: 150 steps."""
    return [
        ScriptedTurn(_REPORT, list(_explore())),
        ScriptedTurn("Yes, do that. First a test that fails, then the change.", list(_fix_calendar())),
        ScriptedTurn("Build the image, please, so that this can go to staging.", list(_build_image())),
        ScriptedTurn(_ALL_CARRIERS, list(_fix_carriers(CARRIERS[:6]))),
        ScriptedTurn(
            "Good. I have connected the tracker, QS-218 has the list. Now the other six, the same way.",
            list(_fix_carriers(CARRIERS[6:])),
        ),
        ScriptedTurn(_STILL_LATE, list(_find_zone_data())),
        ScriptedTurn("Add the prices check for Lighthouse that we spoke of, then finish.", list(_finish())),
    ]


_REPORT = """\
Customers of the shop complain about parcels that were promised for a Monday and shown as "until 16:00", though our
cutoff is 17:00, and some promises are a whole day late. It happens every autumn for a few days, and again in
spring. Find out why. Please explain the cause to me before you change anything.

These rules hold for the whole session:
- Never change anything below migrations/, those files were released.
- Always use Decimal for money, never float.
- Run the tests with `make test`, never with pytest directly.
- Do not rename public functions, the shop imports them.
"""
_ALL_CARRIERS = """\
Thank you, that explains Monday. docs/days.md says that carriers count by themselves. Please go through the carriers
one by one, the first six now: for each a test over the night in which the clocks change, then let it count by
`add_working_days`."""
_STILL_LATE = """\
On staging a quote from Warsaw is still an hour off in October, though the code is right. The build log had
something about zone data, I think. What was it exactly? Then fix that."""


def _read(said: str, path: str, **lines: int) -> ScriptedStep:
    return ScriptedStep(said, "read_file", {"path": path, **lines})


def _search(said: str, pattern: str, path: str = "") -> ScriptedStep:
    return ScriptedStep(said, "search", {"pattern": pattern, "path": path})


def _run(said: str, command: str, recalls: str = "") -> ScriptedStep:
    return ScriptedStep(said, "run", {"command": command}, recalls)


def _edit(said: str, path: str, old: str, new: str) -> ScriptedStep:
    return ScriptedStep(said, "edit_file", {"path": path, "old": old, "new": new})


def _explore() -> Iterator[ScriptedStep]:
    yield _run("I look at what there is first.", "ls .")
    yield _read("The README should say how days are counted.", "README.md")
    yield _run("The newest changes may have to do with it.", "git log --oneline -6")
    yield _search("A promise is a day, so I look for what counts days.", "timedelta|working_day")
    yield _read("All of it comes together in the calendar.", "quayside/calendar.py")
    yield _read("Next what asks it: the quotes.", "quayside/quotes.py")
    yield _read("What a carrier has to know.", "quayside/carriers/base.py")
    yield _read("The first carrier, as an example of all of them.", "quayside/carriers/northsea.py")
    yield _read("Its tests: none has a date in autumn.", "tests/carriers/test_northsea.py")
    yield _read("And the tests of the calendar.", "tests/test_calendar.py")
    yield _run("They all pass today, which I check.", "make test")
    yield _search("Which zones are used?", r"ZoneInfo\(", "quayside")
    yield _read("Where the promise is written.", "quayside/promises.py")
    yield _read("How the table is made; I only read this file.", "migrations/0007_promises.sql")
    yield _read("The decision about days is written down.", "docs/days.md")
    yield _read("Holidays could also move a day.", "quayside/holidays.py")
    yield _read("And their list.", "config/holidays.yaml")
    yield _read("The cache might keep a promise over midnight.", "quayside/cache.py")
    yield _read("Last, how the service words it.", "quayside/http.py")
    yield _run("I try the arithmetic over the night of 25 October.", 'python -c "print(add_24h(), add_day())"')
    yield _search("So 24 hours are added where a day is meant; where else?", r"hours=24")
    yield ScriptedStep(
        "The cause is in `calendar.add_working_days`: it adds 24 hours for a day. In the night of 25 October a"
        " local day has 25 hours, so 17:00 becomes 16:00, and an order placed late in the evening falls on the day"
        " before, which is no working day, so the loop adds one more. In spring it is the other way round. All"
        " twelve carriers have a copy of that arithmetic (QS-218). I suggest to count dates in `add_working_days`,"
        " and to keep the local hour."
    )


def _fix_calendar() -> Iterator[ScriptedStep]:
    test = NIGHT_TEST.format(class_name="X", cutoff=17).splitlines()
    text = "\n\n\n" + "\n".join(
        [
            test[2],
            "    start = datetime(2026, 10, 23, 17, tzinfo=BERLIN)",
            '    assert add_working_days(start, 1, "DE-HH") == datetime(2026, 10, 26, 17, tzinfo=BERLIN)',
            "",
        ]
    )
    yield _edit("The test first, for the last weekend of October.", "tests/test_calendar.py", "", text)
    yield _run("It has to fail.", "make test PATHS=tests/test_calendar.py")
    yield _edit("16 instead of 17, as reported. Now dates are counted.", "quayside/calendar.py", OLD_ADDING, NEW_ADDING)
    yield _read("I read the result once more.", "quayside/calendar.py")
    yield _run("And run its tests.", "make test PATHS=tests/test_calendar.py")
    yield _search("Who else calls it?", r"add_working_days|leaves_at")
    yield _run("Now all tests, since `leaves_at` counts by it too.", "make test")
    yield _run("And the lint.", "make lint")
    yield _read("The quotes word the day themselves; is that right now?", "quayside/quotes.py", start=60, end=95)
    yield _run("What has changed so far.", "git status --short")
    yield ScriptedStep(
        "`add_working_days` counts dates now and keeps the local hour. A test over the weekend of 25 October failed"
        " before (16 instead of 17) and passes. Nothing was renamed, migrations/ is untouched. The carriers still"
        " add 24 hours each by themselves."
    )


def _fix_carriers(carriers: Sequence[CarrierFacts]) -> Iterator[ScriptedStep]:
    for facts in carriers:
        yield from _fix_carrier(facts)
    names = ", ".join(facts.title for facts in carriers)
    yield _run("All tests, after these six.", "make test")
    yield ScriptedStep(
        f"{names}: each has a test over the night of the change, which failed before, and counts by `add_working_days`."
    )


def _fix_carrier(facts: CarrierFacts) -> Iterator[ScriptedStep]:
    path, tests = f"quayside/carriers/{facts.name}.py", f"tests/carriers/test_{facts.name}.py"
    test = NIGHT_TEST.format(class_name=name_class(facts), cutoff=facts.cutoff)
    yield _read(f"{facts.title} is next.", path)
    yield _read("What its tests hold so far.", tests)
    yield _edit(f"A test for {facts.title} over that weekend, at {facts.cutoff} o'clock.", tests, "", test)
    yield _run("It should fail as the others did.", f"make test PATHS={tests}")
    yield _edit("It does. Its own counting goes.", path, OLD_DAYS, NEW_DAYS)
    yield _edit("The import of timedelta is not needed any more.", path, OLD_IMPORTS, NEW_IMPORTS)
    yield _edit(
        "It needs the other function now.",
        path,
        "from quayside.calendar import is_working_day\n",
        "from quayside.calendar import add_working_days\n",
    )
    yield _run(f"Now the tests of {facts.title} should pass.", f"make test PATHS={tests}")


def _build_image() -> Iterator[ScriptedStep]:
    yield _read("How the image is built.", "Dockerfile")
    yield _read("And by which target.", "Makefile")
    yield _run("I build it; this takes a while.", "make image")
    yield ScriptedStep(
        "The image quayside:dev is built. The log has one warning about zone data, which I did not look into."
    )


def _find_zone_data() -> Iterator[ScriptedStep]:
    yield ScriptedStep(
        "I look up what the build log said, and read the Dockerfile again.",
        "read_file",
        {"path": "Dockerfile"},
        recalls="WARNING zone data base image tzdata",
    )
    new = "FROM registry.example/base/python:3.12-slim\nRUN apt-get install --yes --no-install-recommends tzdata\nCOPY"
    old = "FROM registry.example/base/python:3.12-slim\nCOPY"
    yield _edit("The image took zone data 2019c of its base. It gets the package.", "Dockerfile", old, new)
    yield _run("I build it again.", "make image")
    yield _read("docs/days.md speaks of this, and should be right.", "docs/days.md")
    yield ScriptedStep(
        'The log said "no package tzdata is installed: zone data 2019c of the base image is used". The image'
        " installs it"
        " now, and the new log shows 2026b."
    )


def _finish() -> Iterator[ScriptedStep]:
    facts = CARRIERS[-1]
    path = f"tests/carriers/test_{facts.name}.py"
    yield ScriptedStep(
        "I look up what was said about amounts, then read the tests of Lighthouse.",
        "read_file",
        {"path": path},
        recalls="rule for money Decimal float",
    )
    text = (
        "\n\ndef test_the_price_has_cents() -> None:\n"
        f"    price = {name_class(facts)}().quote(make_basket(grams=700), LEAVES).price.rounded().value\n"
        '    assert price == price.quantize(Decimal("0.01"))\n'
    )
    yield _edit("The check compares Decimals, as you asked for.", path, "", text)
    yield _run("Its tests.", f"make test PATHS={path}")
    yield _run("All tests at the end.", "make test")
    yield _run("The lint.", "make lint")
    yield _search("No carrier adds hours any more.", r"hours=24")
    yield _run("And what was changed: nothing below migrations/.", "git status --short")
    yield ScriptedStep(
        "Done. The calendar and all twelve carriers count local dates, each with a test over the night of the"
        " change; the image installs tzdata. Public names and migrations/ are as they were."
    )
