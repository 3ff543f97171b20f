"""Tables of cases that are JSON: a file has one case a line."""

import json
from pathlib import Path
from typing import Any


def load_cases(name: str) -> list[Any]:
    """The cases of a file in this folder."""
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()]
