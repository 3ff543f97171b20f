"""The repository that the demonstration's agent works on, in memory, and the tools by which it does so.

Reads, searches and edits are real; test runs and builds are written from what the files contain. The same calls give
the same outputs in every run.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

_HERE = Path(__file__).parent
_PART = re.compile(r"^=== (\S+)\n", re.MULTILINE)
_TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
_MOST_HITS = 60


@dataclass(frozen=True, slots=True)
class CarrierFacts:
    """What differs between the carriers of the repository."""

    name: str
    title: str
    region: str
    zone: str
    cutoff: int
    cents: int


CARRIERS = (
    CarrierFacts("northsea", "Northsea Parcels", "DE-HH", "Europe/Berlin", 17, 465),
    CarrierFacts("baltica", "Baltica Kurier", "DE-HH", "Europe/Berlin", 16, 489),
    CarrierFacts("polderpost", "Polderpost", "NL", "Europe/Amsterdam", 18, 510),
    CarrierFacts("isarbote", "Isarbote", "DE-BY", "Europe/Berlin", 15, 475),
    CarrierFacts("oresund", "Oresund Fragt", "DK", "Europe/Copenhagen", 14, 580),
    CarrierFacts("vistula", "Vistula Express", "PL", "Europe/Warsaw", 17, 415),
    CarrierFacts("hanseat", "Hanseat Paket", "DE-HH", "Europe/Berlin", 19, 495),
    CarrierFacts("tulip", "Tulip Courier", "NL", "Europe/Amsterdam", 16, 525),
    CarrierFacts("skagen", "Skagen Pakke", "DK", "Europe/Copenhagen", 15, 605),
    CarrierFacts("alpenrad", "Alpenrad", "DE-BY", "Europe/Berlin", 12, 450),
    CarrierFacts("amber", "Amber Line", "PL", "Europe/Warsaw", 18, 430),
    CarrierFacts("lighthouse", "Lighthouse Overnight", "DE-HH", "Europe/Berlin", 20, 940),
)

OLD_DAYS = """        moment = leaves
        while days:
            moment += timedelta(hours=24)  # QS-218
            if is_working_day(moment.date(), self.region):
                days -= 1
        return moment
"""
NEW_DAYS = """        return add_working_days(leaves, days, self.region)
"""
OLD_IMPORTS = "from datetime import datetime, timedelta\n"
NEW_IMPORTS = "from datetime import datetime\n"
NIGHT_TEST = """

def test_the_hour_stays_over_the_night_in_which_the_clocks_change() -> None:
    leaves = datetime(2026, 10, 23, {cutoff}, tzinfo=ZONE)  # a Friday; the clocks change on Sunday
    arrives = {class_name}().quote(make_basket(postcode="20095"), leaves).arrives
    assert arrives.weekday() < 5 and arrives.hour == {cutoff}
"""
OLD_ADDING = """    moment = start
    for _ in range(count):
        moment = moment + timedelta(hours=24)
        while not is_working_day(moment.date(), region):
            moment = moment + timedelta(hours=24)
    return moment
"""
NEW_ADDING = """    day = start.date()
    for _ in range(count):
        day = next_working_day(day, region)
    return datetime.combine(day, start.timetz())
"""


class Workspace:
    """The files, and the tools over them. `run` answers a call of a tool with a text, also a wrong call."""

    def __init__(self) -> None:
        self.files = dict(_read_files((_HERE / "repository.txt").read_text("utf-8")))
        template = Template((_HERE / "carrier.txt").read_text("utf-8"))
        for facts in CARRIERS:
            self.files |= dict(_read_files(template.substitute(_fill_carrier(facts))))
        self.builds = 0

    def run(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return what a call of a tool returns."""
        if tool == "read_file":
            return self._read(arguments["path"], arguments.get("start", 1), arguments.get("end", 2000))
        if tool == "search":
            return self._search(arguments["pattern"], arguments.get("path", ""))
        if tool == "edit_file":
            return self._edit(arguments["path"], arguments["old"], arguments["new"])
        return self._execute(arguments["command"])

    def _read(self, path: str, start: int, end: int) -> str:
        if path not in self.files:
            return f"error: {path} does not exist"
        lines = self.files[path].splitlines()[start - 1 : end]
        return "\n".join(f"{start + i:>5}  {line}" for i, line in enumerate(lines))

    def _search(self, pattern: str, path: str) -> str:
        hits = [
            f"{name}:{number}: {line.strip()}"
            for name, text in sorted(self.files.items())
            if name.startswith(path)
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(pattern, line)
        ]
        more = [f"… {len(hits) - _MOST_HITS} more"] if len(hits) > _MOST_HITS else []
        return "\n".join([*hits[:_MOST_HITS], *more]) or "no matches"

    def _edit(self, path: str, old: str, new: str) -> str:
        text = self.files.get(path, "")
        if old and text.count(old) != 1:
            return f"error: the text to replace is found {text.count(old)} times in {path}, and has to be there once"
        self.files[path] = text.replace(old, new) if old else text + new
        before, after = (old or new).count("\n"), new.count("\n")
        return f"edited {path}: {before if old else 0} lines replaced by {after}"

    def _execute(self, command: str) -> str:
        program, _, rest = command.partition(" ")
        if command.startswith("make test"):
            return self._test(rest.partition("PATHS=")[2] or "tests")
        if command == "make lint":
            return f"ruff check quayside tests\nAll checks passed!\nmypy quayside\nSuccess: {len(self.files)} files"
        if command == "make image":
            self.builds += 1
            return "\n".join(self._build())
        if program == "ls":
            return "\n".join(sorted(name for name in self.files if name.startswith(rest.strip("./"))))
        if program == "git":
            return self._ask_git(rest)
        if program == "python":
            return "2026-10-26 16:00:00+01:00  2026-10-26 17:00:00+01:00"
        return f"sh: {program}: not found"

    def _ask_git(self, rest: str) -> str:
        if rest.startswith("log"):
            return "\n".join(
                f"{zlib.crc32(text.encode()):07x} {text}"
                for text in (
                    "Lighthouse Overnight is a carrier (#231)",
                    "Quotes are kept for a minute (#226)",
                    "Promises are rows that nobody changes (#219)",
                    "Transit times by the zone of the postcode (#214)",
                    "calendar: one place that counts working days (#209)",
                    "Fuel is a factor and no longer a fee (#203)",
                )
            )
        return "\n".join(f" M {name}" for name in sorted(self.files) if self._is_changed(name))

    def _is_changed(self, name: str) -> bool:
        text = self.files[name]
        return NEW_DAYS in text or NEW_ADDING in text or "_the_night_in_which" in text or "tzdata" in text

    def _test(self, paths: str) -> str:
        """Write what pytest does with `-v`: a line for each test, and a traceback for each that fails."""
        tests = [
            (name, test)
            for name, text in sorted(self.files.items())
            if name.startswith(paths) and name.startswith("tests/")
            for test in _TEST.findall(text)
        ]
        head = ["python -m pytest -v --strict-markers " + paths, "=" * 30 + " test session starts " + "=" * 30]
        head += ["platform linux -- Python 3.12.7, pytest-8.4.2, pluggy-1.6.0", f"collected {len(tests)} items", ""]
        failed = [(name, test) for name, test in tests if self._fails(name, test)]
        lines = [
            f"{name}::{test} {'FAILED' if (name, test) in failed else 'PASSED'} [{100 * (i + 1) // len(tests):>3}%]"
            for i, (name, test) in enumerate(tests)
        ]
        for name, test in failed:
            lines += ["", f"{'_' * 20} {test} {'_' * 20}", "", *self._trace(name)]
        if failed:
            lines += ["=" * 30 + " short test summary info " + "=" * 30]
            lines += [f"FAILED {name}::{test} - assert 16 == 17" for name, test in failed]
        passed = f"{len(tests) - len(failed)} passed"
        lines.append(f"==== {f'{len(failed)} failed, ' if failed else ''}{passed} in {0.02 * len(tests):.2f}s ====")
        return "\n".join([*head, *lines, *(["make: *** [Makefile:6: test] Error 1"] if failed else [])])

    def _fails(self, name: str, test: str) -> bool:
        if "_the_night_in_which" not in test:
            return False
        tested = name.replace("tests/", "quayside/").replace("test_", "")
        return "timedelta(hours=24)" in self.files[tested]

    def _trace(self, name: str) -> Iterator[str]:
        tested = name.replace("tests/", "quayside/").replace("test_", "")
        lines = self.files[tested].splitlines()
        place = next(i for i, line in enumerate(lines) if "timedelta(hours=24)" in line)
        test = self.files[name].partition("def test_the_hour_stays_over_the_night")
        yield from (f"    {line}" for line in (test[1] + test[2]).splitlines()[:6])
        yield f"{name}:{test[0].count(chr(10)) + 4}:"
        yield from (f"    {line}" for line in lines[max(0, place - 30) : place])
        yield f">   {lines[place]}"
        yield from (
            f"{tested}:{place + 1}: in the call of {name}",
            "E   assert 16 == 17",
            "E    +  where 16 = datetime.datetime(2026, 10, 26, 16, 0,",
            "E               tzinfo=zoneinfo.ZoneInfo(key='Europe/Berlin')).hour",
        )

    def _build(self) -> Iterator[str]:
        """Yield the lines of a build of the image, several hundred of them, one of which matters."""
        yield "docker build --progress=plain --tag quayside:dev ."
        yield "#1 [internal] load build definition from Dockerfile"
        yield "#4 [build 1/6] FROM registry.example/base/python:3.12-slim@sha256:7be54d1a"
        for n in range(80):
            digest = zlib.crc32(f"layer {n}".encode())
            size = f"{n % 7 + 1}.{n % 10} MB"
            yield f"#4 sha256:{digest:08x} {size} / {size} done, extracting {n * 13 % 97} ms"
        for n, package in enumerate(_PACKAGES):
            digest = zlib.crc32(package.encode())
            yield f"#8 {n * 0.31 + 1:.2f} Collecting {package} (from -r requirements.lock (line {3 * n + 1}))"
            wheel = f"{package.replace('==', '-')}-py3-none-any.whl"
            yield f"#8 {n * 0.31 + 1.1:.2f}   Downloading {wheel} ({digest % 900} kB)"
            yield f"#8 {n * 0.31 + 1.2:.2f}   hash sha256:{digest:08x}{zlib.crc32(package[::-1].encode()):08x} verified"
        if "tzdata" not in self.files["Dockerfile"]:
            yield "#9 0.412 WARNING: no package tzdata is installed: zone data 2019c of the base image is used"
        else:
            yield "#9 0.398 tzdata 2026b is installed (2026b-0+deb13u1), zone data of the base image is not used"
        for n in range(180):
            name = f"quayside/{'carriers/' if n % 3 else ''}{CARRIERS[n % 12].name}.py"
            place = f"build/lib/{name} (pass {n // 12 + 1})"
            yield f"#10 {n * 0.02:.3f} copying {name} -> {place}, byte-compiled to cpython-312"
        for n in range(40):
            yield f"#13 {n * 0.11:.2f} Installing {_PACKAGES[n % len(_PACKAGES)]} from /wheels, {n * 37 % 211} files"
        yield f"#14 exporting to image sha256:{zlib.crc32(str(self.builds).encode()):08x} done"
        yield "#14 naming to quayside:dev done"


_PACKAGES = tuple(
    f"{name}=={major}.{minor}"
    for major, (minor, names) in enumerate(
        (
            (4, "annotated-types anyio attrs certifi charset-normalizer click idna iniconfig jinja2 markupsafe"),
            (2, "mypy mypy-extensions numpy packaging pathspec pillow pluggy psycopg psycopg-pool pycparser"),
            (7, "pydantic pydantic-core pygments pytest pyyaml requests ruff setuptools six sniffio"),
            (1, "sqlalchemy starlette structlog tenacity tomli typing-extensions urllib3 uvicorn wheel zipp"),
        ),
        1,
    )
    for name in names.split()
)


def _read_files(text: str) -> Iterator[tuple[str, str]]:
    """Yield the paths and texts of the files in a text that has a line `=== PATH` before each."""
    parts = _PART.split(text)
    return zip(parts[1::2], parts[2::2], strict=True)


def name_class(facts: CarrierFacts) -> str:
    """Return the name of a carrier's class."""
    return "".join(word.capitalize() for word in facts.title.split())


def _fill_carrier(facts: CarrierFacts) -> dict[str, object]:
    """Return what the templates of a carrier's module and tests need."""
    seed = zlib.crc32(facts.name.encode())
    starts = [f"{10 + place}" for place in range(90) if (seed >> place % 29) % 5]
    prices = [facts.cents + 65 * step + seed % 7 * step for step in range(31)]
    fuel = 4 + seed % 9
    final = [f"{price * (100 + fuel) / 10_000:.2f}" for price in prices]
    return {
        "name": facts.name,
        "title": facts.title,
        "class_name": name_class(facts),
        "region": facts.region,
        "zone": facts.zone,
        "cutoff": facts.cutoff,
        "list": f"{'ABCD'[seed % 4]}{seed % 90 + 10}",
        "longest": 100 + seed % 5 * 20,
        "most": 20_000 + seed % 3 * 5500,
        "fragile": f"{1 + seed % 3}.{seed % 9}0",
        "island": f"{9 + seed % 4}.50",
        "days": 4 + seed % 2,
        "fuel": f"0.{fuel:02d}",
        "first": final[0],
        "fifth": final[4],
        "transit": "\n".join(f'    "{start}": {1 + (seed >> n % 31) % 3},' for n, start in enumerate(starts)),
        "prices": "\n".join(f'    ({step + 1}, "{price / 100:.2f}"),' for step, price in enumerate(prices)),
    }
