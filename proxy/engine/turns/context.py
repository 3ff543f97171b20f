"""What a program is to send in a call that it makes elsewhere: the conversation so far, as a call of ours would go."""

import asyncio
from typing import Literal

import msgspec

from proxy.engine.compaction.manual import ManualCompaction
from proxy.engine.compaction.preview import foresee_request
from proxy.engine.history.held import LOG_SECONDS
from proxy.engine.history.loading import load_path
from proxy.engine.recorded.conversation import list_raws, split_whole
from proxy.engine.turns.recording import TurnRecorder
from proxy.model.errors import BadRequest, StoreUnavailable
from proxy.model.exchange import SessionKey
from proxy.model.results import BuiltContext
from proxy.wire import FORMATS, OWN_FORMAT
from proxy.wire.format import Format
from proxy.wire.identity import count_preamble
from proxy.wire.json_values import encode_text
from proxy.wire.translation.conversations import TranslatedConversation, read_instructions, translate

ContextWire = Literal["chat", "messages", "responses"]
"""The API whose messages are wanted: chat completions, Anthropic's Messages, or Responses."""

_FORMATS = {form.short_name: form for form in FORMATS.values()}


async def build_context(
    recorder: TurnRecorder, manual: ManualCompaction, key: SessionKey, wire: ContextWire, *, system: str, cap: int
) -> BuiltContext:
    """Return what a call would begin with that goes on from the newest complete answer of a session.

    `system` is the system prompt of that call; empty means that of the last one. `cap` is as in `load_path`. Nothing is
    opened, and nobody is asked. Raises BadRequest for an unknown wire, NotFound, Conflict and StoreUnavailable.
    """
    target = _FORMATS.get(wire)
    if target is None:
        raise BadRequest(f"wire is one of {', '.join(sorted(_FORMATS))}, not {str(wire)[:40]!r}")
    try:
        async with asyncio.timeout(LOG_SECONDS):
            path, _ = await load_path(recorder.archive, key.id, cap=cap, scan=0)
    except TimeoutError:
        raise StoreUnavailable("the log did not give the history of the session in time") from None
    row = await recorder.find_row(key.id, path.exchange) if path is not None else None
    if path is None or row is None:
        raws = [OWN_FORMAT.write_message("system", encode_text(system))] if system else []
        return _describe(TranslatedConversation((), system), target, await recorder.count(key, "", raws))
    sent = await foresee_request(manual, row, path.answer)
    return _describe(_spell(FORMATS[path.wire], target, sent.body, system), target, sent.tokens)


def _spell(form: Format, target: Format, body: bytes, system: str) -> TranslatedConversation:
    """Return the messages of a body behind its system prompt, in another format, and that prompt."""
    split = split_whole(body, form.items_key)
    raws = list_raws(split)
    leading = count_preamble([form.reader.read_item(raw) for raw in raws])
    own = read_instructions(form, split.member(form.instructions_key)) if form.instructions_key else ""
    told = [form.parse_message(raw).text for raw in raws[:leading]]
    prompt = system or "\n\n".join(filter(None, (own, *told)))
    rest = raws[leading:]
    if form is target:
        return TranslatedConversation(tuple(rest), prompt)
    return TranslatedConversation(translate(form, target, rest).items, prompt)


def _describe(spelled: TranslatedConversation, target: Format, tokens: int) -> BuiltContext:
    messages = [msgspec.json.decode(raw) for raw in spelled.items]
    if spelled.instructions and not target.instructions_key:
        return BuiltContext(
            messages=[{"role": "system", "content": spelled.instructions}, *messages], token_estimate=tokens
        )
    return BuiltContext(messages=messages, token_estimate=tokens, system=spelled.instructions)
