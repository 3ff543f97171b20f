"""What a transcript says of its session."""

from proxy.read.session_summary import find_title
from proxy.transcripts.transcript import Transcript
from proxy.wire import FORMATS


def find_own_title(found: Transcript) -> str:
    """The title that its first request would get in the log."""
    return find_title(FORMATS[found.wire], found.trails[0])
