"""Requests for embeddings, which nearly all servers take in OpenAI's form, and their responses."""

from collections.abc import Sequence

import msgspec

from proxy.model.exchange import Usage
from proxy.retrieval.vectors import pack_signs

EMBEDDINGS = b"/v1/embeddings"
"""The path at which an upstream is asked."""


class _Vector(msgspec.Struct, gc=False):
    """A vector in a response. Some servers leave out the index, and send them in order."""

    embedding: list[float]
    index: int | None = None


class _Counted(msgspec.Struct, gc=False):
    """The usage in a response."""

    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Response(msgspec.Struct, gc=False):
    """What is read of a response."""

    data: list[_Vector]
    usage: _Counted | None = None


_responses = msgspec.json.Decoder(_Response)


def write_embedding_request(model: str, texts: Sequence[str]) -> bytes:
    """Return a request for a vector of each text."""
    return msgspec.json.encode({"model": model, "input": texts})


def read_embeddings(body: bytes, count: int) -> tuple[list[bytes], Usage | None]:
    """Return the code of each of `count` vectors in a response, and the usage if it is told.

    Raises ValueError if it has not as many, or they are no vectors of one length.
    """
    try:
        response = _responses.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    places = [at if each.index is None else each.index for at, each in enumerate(response.data)]
    if sorted(places) != list(range(count)):
        raise ValueError(f"the response has {len(places)} vectors for {count} texts, or not one for each")
    codes = [b""] * count
    for at, each in zip(places, response.data, strict=True):
        codes[at] = pack_signs(each.embedding)
    if len(set(map(len, codes))) > 1:
        raise ValueError("the vectors in the response are of several lengths")
    counted = response.usage or _Counted()
    tokens = counted.prompt_tokens if counted.prompt_tokens is not None else counted.total_tokens
    return codes, None if tokens is None or tokens < 0 else Usage(tokens, 0)
