"""Foreign text made fit to stand inside words of ours.

Rule: it stays on its line, has an encoding, and cannot pass for a marker of ours (PROTOCOL §3, 8).
"""

import re

UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_BRACKETED = re.compile(r"\[(?=\s*/?\s*(?:FILE\b|tool\s*:))", re.IGNORECASE)
_REFERRING = re.compile(r"\bref:(?=[a-z0-9]{10})", re.IGNORECASE)


def clean(text: str, most: int) -> str:
    """At most so many characters of a text, in one line."""
    cut = text[: most + 1]
    fit = _REFERRING.sub("ref ", _BRACKETED.sub("(", UNFIT.sub(" ", cut)))
    return fit if len(cut) <= most else f"{fit[: most - 1]}…"
