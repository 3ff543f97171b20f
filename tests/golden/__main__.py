"""`python -m tests.golden record|check|keep [STORY ...] [--dump DIR]`: record what is sent and said, or compare.

`keep` makes the log that later versions are to open; it was run once, by the version that the log is of.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.golden.stories import STORIES, tell_kept_log
from tests.golden.world import Seen

CORPUS = Path(__file__).with_name("corpus")
_MOST_SHOWN = 5


def main() -> int:
    """Run the stories; 1 where one differs from what was recorded."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("act", choices=("record", "check", "keep"))
    parser.add_argument("stories", nargs="*", metavar="STORY", help=f"some of: {', '.join(STORIES)}")
    parser.add_argument("--dump", type=Path, help="write everything that was seen below this directory")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.stories if name not in STORIES]
    if unknown:
        parser.error(f"there is no story {unknown[0]!r}; see --help")
    if arguments.act == "keep":
        tell_kept_log()
        return 0
    differing = 0
    for name in arguments.stories or STORIES:
        began = time.monotonic()
        seen = STORIES[name]().seen
        if arguments.dump:
            dump(arguments.dump / name, seen)
        calls = sum(each.kind == "got" for each in seen)
        print(f"{name}: {calls} calls, {len(seen)} items, {time.monotonic() - began:.1f} s", flush=True)
        path = CORPUS / f"{name}.txt"
        if arguments.act == "record":
            CORPUS.mkdir(exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in list_lines(seen)))
        else:
            differing += compare(path.read_text().splitlines(), list_lines(seen))
    print(f"{differing} stories differ" if differing else "all as recorded" if arguments.act == "check" else "recorded")
    return 1 if differing else 0


def list_lines(seen: list[Seen]) -> list[str]:
    """A line per item: what it is, and the digest of its content."""
    return [f"{each.digest} {each.kind} {each.step}" for each in seen]


def compare(recorded: list[str], now: list[str]) -> bool:
    """Tell the first items that differ; whether any does."""
    if recorded == now:
        return False
    known = set(recorded)
    fresh = [line for line in now if line not in known]
    gone = len(known - set(now))
    print(f"  {len(fresh)} items differ or are new, {gone} are gone; the first:", *fresh[:_MOST_SHOWN], sep="\n    ")
    return True


def dump(folder: Path, seen: list[Seen]) -> None:
    """Write each item into a file of its own, to be compared with those of another version."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, each in enumerate(seen):
        name = "".join(char if char.isalnum() or char in "-." else "_" for char in each.step)[:80]
        (folder / f"{place:05}-{each.kind}-{name}").write_bytes(each.content)


if __name__ == "__main__":
    sys.exit(main())
