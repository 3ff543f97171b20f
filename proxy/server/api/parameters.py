"""Parameters that several paths of the API take."""

from typing import Annotated

import msgspec
from msgspec import Meta

_SESSION = "a session's id, or a prefix of it"

Branch = Annotated[str, Meta(description="the tip of a branch, as the session lists it, or a prefix of it")]
Cursor = Annotated[str, Meta(description="`next` of the page before; without it the first page")]
Limit = Annotated[int, Meta(ge=1, le=1000, description="how many items at most")]
Number = Annotated[int, Meta(ge=0, le=999_999_999, description="a number in the session, counted from 1")]
Round = Annotated[int, Meta(ge=0, le=999_999_999, description="the number of a round, else the last one")]


class SessionPath(msgspec.Struct, frozen=True):
    """A session."""

    id: Annotated[str, Meta(description=_SESSION)]


class NumberedPath(msgspec.Struct, frozen=True):
    """A call or an epoch of a session."""

    id: Annotated[str, Meta(description=_SESSION)]
    n: Number


class BranchQuery(msgspec.Struct, frozen=True):
    """A branch of a session; without one its newest conversation."""

    branch: Branch = ""


class RoundQuery(msgspec.Struct, frozen=True):
    """A round of a call."""

    k: Round | None = None


class ListingQuery(msgspec.Struct, frozen=True):
    """A page of a listing."""

    cursor: Cursor = ""
    limit: Limit = 100
