"""The stories of the golden corpus: synthetic sessions of every kind, one function each."""

import gzip
import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.golden.provider import Message, Reply
from tests.golden.talk import Talk, list_requests
from tests.golden.world import Answer, World, make_world
from tests.journeys.running import run_command

TOOLS: list[Message] = [
    {"type": "function", "function": {"name": name, "description": f"Do {name}.", "parameters": {"type": "object"}}}
    for name in ("bash", "read_file", "write_file", "edit_file")
]
STREAM: Message = {"stream": True, "stream_options": {"include_usage": True}}

Story = Callable[[], World]


def name_session(name: str, ceiling: int = 0, **more: str) -> dict[str, str]:
    """The headers of a call that says which session it is of, and perhaps its ceiling."""
    fields = {"x-palimpsest-session": name, **more}
    return {**fields, "x-palimpsest-ceiling": str(ceiling)} if ceiling else fields


def run_agent(world: World, requests: Iterable[list[Message]], fields: dict[str, str], **members: Any) -> Answer:
    """Ask with one request after the other; each is answered with what the next one says was answered."""
    asked = list(requests)
    answer: Answer | None = None
    for place, messages in enumerate(asked):
        following = asked[place + 1] if place + 1 < len(asked) else messages
        said = following[len(messages)] if len(following) > len(messages) else {"role": "assistant", "content": "Done."}
        answer = world.ask(messages, fields, reply=Reply(said), tools=TOOLS, **members)
    assert answer is not None
    return answer


def find_session(answer: Answer) -> str:
    return answer.get("x-palimpsest-session")


def tell_short_chats() -> World:
    """Conversations below every mark, named and not, streamed and not."""
    names: list[dict[str, str]] = [{}, {"x-palimpsest-session": "s"}, {"x-session-id": "t"}, {"session_id": "u"}]
    with make_world("short-chats") as world:
        talk = Talk("short chats")
        for number in range(48):
            history = talk.history(talk.number(0, 3), 6, turn_every=2)
            fields = {name: f"{value}{number}" for name, value in names[number % 4].items()}
            members: Message = STREAM if number % 3 == 0 else {}
            if number % 5 == 4:
                members = {**members, "temperature": 0.0, "metadata": {"session_id": f"m{number}"}}
            run_agent(world, list_requests(history), fields, **members)
        world.look("/sessions?limit=100")
        world.look("/savings")
    return world


def tell_responses() -> World:
    """The Responses API: whole histories, stored ones, streams."""
    with make_world("responses") as world:
        talk = Talk("responses")
        for number in range(24):
            items: list[Message] = [{"type": "message", "role": "user", "content": talk.task()}]
            for step in range(talk.number(1, 5)):
                body: Message = {"model": "gpt-4o", "instructions": "You help.", "input": list(items)}
                if number % 2:
                    body["stream"] = True
                if number % 4 == 3:
                    body["prompt_cache_key"] = f"key-{number}"
                if number % 6 == 5 and step:
                    body["previous_response_id"], body["input"] = "resp_1", items[-1:]
                text = talk.prose(20)
                reply = Reply({"role": "assistant", "content": text})
                fields = {"session_id": f"r{number}"} if number % 3 == 0 else {}
                world.send(json.dumps(body).encode(), fields, path="/v1/responses", reply=reply)
                said = {"type": "output_text", "text": text}
                items.append({"type": "message", "role": "assistant", "content": [said]})
                call = talk.call("bash", {"command": "ls"})
                named = {"call_id": call["id"], "name": "bash", "arguments": call["function"]["arguments"]}
                items.append({"type": "function_call", **named})
                output = talk.lines(5)
                items.append({"type": "function_call_output", "call_id": call["id"], "output": output})
        world.look("/sessions?limit=100")
    return world


def tell_anthropic() -> World:
    """The Messages API: blocks, cache marks, results of tools, streams."""
    with make_world("anthropic") as world:
        talk = Talk("anthropic")
        for number in range(24):
            messages: list[Message] = [{"role": "user", "content": talk.task()}]
            for _ in range(talk.number(1, 5)):
                system = [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}]
                body: Message = {"model": "claude-sonnet-4-5", "max_tokens": 900, "system": system}
                body["messages"] = list(messages)
                if number % 2:
                    body["stream"] = True
                text = talk.prose(20)
                fields = {"anthropic-version": "2023-06-01", "x-api-key": "sk-ant-0123456789abcdefgh"}
                if number % 3 == 0:
                    fields["x-claude-code-session-id"] = f"c{number}"
                reply = Reply({"role": "assistant", "content": text})
                world.send(json.dumps(body).encode(), fields, path="/v1/messages", reply=reply)
                use = {"type": "tool_use", "id": f"toolu_{number}_{len(messages)}", "name": "bash", "input": {"a": 1}}
                messages.append({"role": "assistant", "content": [{"type": "text", "text": text}, use]})
                result = {"type": "tool_result", "tool_use_id": use["id"], "content": talk.lines(5)}
                messages.append({"role": "user", "content": [result]})
        world.send(b'{"model":"claude-sonnet-4-5","messages":[]}', path="/v1/messages/count_tokens")
        world.look("/sessions?limit=100")
    return world


def tell_odd_bodies() -> World:
    """What clients send by mistake, and what is answered with an error."""
    deep = b'{"model":"gpt-4o","messages":' + b"[" * 200 + b"]" * 200 + b"}"
    hello = b'{"model":"gpt-4o","messages":[{"role":"user","content":"Hello"}]}'
    bodies = [
        b"", b"{", b"null", b"[]", b'"text"', b"{}", b'{"messages":{}}', b'{"messages":[]}', b'{"messages":[null]}',
        b'{"messages":[{"role":"user"}]}', b'{"model":7,"messages":[{"role":"user","content":"a"}]}', deep,
        b'{"model":"gpt-4o","messages":[{"role":"user","content":"a"}],"messages":[]}', b"\xff\xfe{}",
        b'{"model":"gpt-4o","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"gpt-4o","messages":[{"role":"user","content":"a\\u0000b"}],"n":1e400}',
        hello.replace(b"{", b"  {\n", 1) + b"  ", hello.replace(b":", b" : "),
    ]  # fmt: skip
    with make_world("odd-bodies") as world:
        for body in bodies:
            for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
                world.send(body, path=path)
        world.send(gzip.compress(hello, mtime=0), {"content-encoding": "gzip"})
        for path in ("/v1/embeddings", "/v1/completions", "/v1/audio/speech", "/v1/threads/t/messages", "/other"):
            world.send(hello, path=path)
        for path in ("/openai/deployments/d/chat/completions?api-version=1", "/api/v1/chat/completions", "/v1/models"):
            world.send(hello, path=path)
        world.send(b"", path="/v1/models", method="GET")
        for status in (400, 401, 404, 429, 500, 503):
            world.send(hello, reply=Reply(status=status))
        for name, value in (
            ("mode", "bypass"),
            ("mode", "observe"),
            ("mode", "odd"),
            ("ceiling", "0"),
            ("ceiling", "x"),
        ):
            world.send(hello, {f"x-palimpsest-{name}": value})
        for name in ("history", "strategy", "source"):
            world.send(hello, {f"x-palimpsest-{name}": "turns"})
        world.look("/sessions?limit=100")
        world.look("/sessions/nobody")
        world.look("/refs/aaaaaaaaaa")
    return world


def make_agent(ceiling: int, number: int, steps: int, size: int, turn_every: int) -> Story:
    """An agent that names its session, from its first call to far above its ceiling."""

    def tell() -> World:
        name = f"agent-{ceiling}-{number}"
        with make_world(name) as world:
            history = Talk(name).history(steps, size, turn_every=turn_every)
            fields = name_session(name, ceiling)
            members = STREAM if number % 2 else {}
            last = run_agent(world, list_requests(history), fields, **members)
            world.look_at_session(find_session(last))
            world.look("/savings")
        return world

    return tell


def tell_branches() -> World:
    """Histories that fork, go back, are sent twice, and are changed."""
    with make_world("branches") as world:
        talk = Talk("branches")
        trunk = talk.history(40, 14, turn_every=9)
        fields = name_session("branches", 9_000)
        requests = list_requests(trunk)
        last = run_agent(world, requests, fields)
        for place in (len(requests) // 3, len(requests) // 2, len(requests) - 2):
            base = requests[place]
            other = Talk(f"branch {place}")
            grown = list(base)
            for _ in range(8):
                grown = [*grown, *other.step(14)]
                world.ask(grown, fields, tools=TOOLS)
            world.ask(requests[place], fields, tools=TOOLS)
        run_agent(world, list_requests(trunk + talk.step(14) + talk.step(14))[-3:], fields)
        edited = [{"role": "system", "content": "You are another agent."}, *trunk[1:]]
        for _ in range(3):
            world.ask(edited, fields, tools=TOOLS)
        world.ask([*trunk[:-2], {"role": "user", "content": "Stop that."}], fields, tools=TOOLS)
        world.look_at_session(find_session(last))
    return world


def tell_side_calls() -> World:
    """Titles, small questions and other models beside an agent's own calls."""
    with make_world("side-calls") as world:
        history = Talk("side calls").history(24, 12)
        fields = name_session("side", 8_000)
        last: Answer | None = None
        for place, messages in enumerate(list_requests(history)):
            last = world.ask(messages, fields, tools=TOOLS)
            if place % 3 == 0:
                title = {"role": "user", "content": "Give this conversation a title."}
                world.ask([title, *messages[1:3]], fields, max_tokens=30, model="gpt-4o-mini")
            if place % 4 == 0:
                world.ask(messages, fields, tools=TOOLS, model="gpt-4.1")
        assert last is not None
        world.look_at_session(find_session(last))
    return world


def tell_restarts() -> World:
    """A session that goes on after orderly and other ends of the proxy."""
    with make_world("restarts") as world:
        history = Talk("restarts").history(60, 12, turn_every=8)
        requests = list_requests(history)
        fields = name_session("restarts", 8_000)
        last: Answer | None = None
        for place, messages in enumerate(requests):
            if place % 12 == 11:
                if place % 24 == 11:
                    world.stop()
                else:
                    world.kill()
                world.start()
            last = world.ask(messages, fields, tools=TOOLS)
        assert last is not None
        world.look_at_session(find_session(last))
    return world


def tell_overflows() -> World:
    """An upstream that takes less than anybody knows, and says so."""
    with make_world("overflows") as world:
        for number in range(3):
            history = Talk(f"overflow {number}").history(22, 20, turn_every=7)
            fields = name_session(f"overflow-{number}")
            for messages in list_requests(history):
                members: Message = {**(STREAM if number == 1 else {}), **({"max_tokens": 2000} if number == 2 else {})}
                reply = Reply(window=6_000 + 2_000 * number)
                last = world.ask(messages, fields, reply=reply, tools=TOOLS, **members)
            world.look_at_session(find_session(last))
    return world


def tell_refusals() -> World:
    """Upstreams that refuse whatever was rewritten; sessions with signed reasoning."""
    with make_world("refusals") as world:
        for number in range(3):
            history = Talk(f"refusal {number}").history(26, 14)
            if number == 2:
                for message in history:
                    if message["role"] == "assistant":
                        signed = {"type": "thinking", "thinking": "So.", "signature": "c2lnbmF0dXJl"}
                        message["thinking_blocks"] = [signed]
            fields = name_session(f"refusal-{number}", 8_000)
            for place, messages in enumerate(list_requests(history)):
                is_strict = number > 0 or place % 5 == 0
                last = world.ask(messages, fields, reply=Reply(is_strict=is_strict), tools=TOOLS)
            world.look_at_session(find_session(last))
    return world


def tell_decisions() -> World:
    """Pins, reverts, observation and bypass: what a person decides about a session."""
    with make_world("decisions") as world:
        history = Talk("decisions").history(56, 12, turn_every=10)
        requests = list_requests(history)
        fields = name_session("decisions", 8_000)
        session = ""
        for place, messages in enumerate(requests):
            more = {5: {"x-palimpsest-pin": "true"}, 20: {"x-palimpsest-pin": "true"}}.get(place, {})
            mode = {"x-palimpsest-mode": "observe"} if place % 16 == 15 else {}
            mode = {"x-palimpsest-mode": "bypass"} if place % 16 == 14 else mode
            answer = world.ask(messages, {**fields, **more, **mode}, tools=TOOLS)
            session = find_session(answer) or session
            at = f"/sessions/{session}"
            if place == 9:
                world.look(f"{at}/pins?exchange=2&place=2", "POST")
            if place in (30, 44):
                world.wait_for_usage(session, place + 1)
                count = len(world.look(f"{at}/epochs"))
                world.look(f"{at}/epochs/{count}/revert?dry_run=true", "POST")
                world.look(f"{at}/epochs/{count}/revert", "POST")
        world.look(f"/sessions/{session}/exchanges/40/diff")
        world.look_at_session(session)
    return world


def make_summaries(number: int, steps: int) -> Story:
    """Sessions in which summaries are asked for by hand, until they are merged."""

    def tell() -> World:
        name = f"summaries-{number}"
        with make_world(name, COMPACTION__SPEND_FRACTION="1") as world:
            history = Talk(name).history(steps, 14, turn_every=11)
            fields = name_session(name, 24_000)
            session = ""
            for place, messages in enumerate(list_requests(history)):
                session = find_session(world.ask(messages, fields, tools=TOOLS))
                if place % 12 == 11:
                    world.look(f"/sessions/{session}/compact?dry_run=true", "POST")
                    world.look(f"/sessions/{session}/compact", "POST")
            for place, body in enumerate(world.upstream.own_calls):
                world.record(f"{name}/own/{place:02}", "sent", body)
            world.look_at_session(session)
        return world

    return tell


def tell_plain_chat() -> World:
    """Many short turns of a user, and none of any tool."""
    with make_world("plain-chat") as world:
        talk = Talk("plain chat")
        messages: list[Message] = []
        fields = name_session("plain", 4_000)
        last: Answer | None = None
        for number in range(160):
            messages = [*messages, {"role": "user", "content": f"Ticket {number}: {talk.prose(talk.number(3, 25))}"}]
            said: Message = {"role": "assistant", "content": f"Part {number}. {talk.prose(talk.number(5, 50))}"}
            last = world.ask(messages, fields, reply=Reply(said))
            messages = [*messages, said]
        assert last is not None
        world.look_at_session(find_session(last))
    return world


def tell_pastes() -> World:
    """Turns of a sentence and a pasted block, some of them equal; long answers."""
    with make_world("pastes") as world:
        talk = Talk("pastes")
        messages: list[Message] = [{"role": "system", "content": "You read logs."}]
        fields = name_session("pastes", 9_000)
        repeated = "\n".join(f"Instruction {number}: {talk.prose(9)}" for number in range(14))
        last: Answer | None = None
        for number in range(60):
            own = "The ticket is PAL-7731." if number == 3 else f"Here is what run {number} said."
            block = repeated if number % 4 == 2 else talk.lines(talk.number(4, 120))
            content = f"{own}\n```\n{block}\n```\n{talk.prose(talk.number(0, 30))}"
            messages = [*messages, {"role": "user", "content": content}]
            said: Message = {"role": "assistant", "content": talk.prose(600 if number % 9 == 8 else 40)}
            last = world.ask(messages, fields, reply=Reply(said))
            messages = [*messages, said]
        assert last is not None
        world.look_at_session(find_session(last))
    return world


def tell_pictures() -> World:
    """Messages with pictures, also more of them than the record takes."""
    with make_world("pictures", STORE__RECORD_CAP_BYTES="300000") as world:
        talk = Talk("pictures")
        messages: list[Message] = talk.history(2, 6)
        fields = name_session("pictures", 8_000)
        last: Answer | None = None
        for number in range(30):
            parts = [
                {"type": "text", "text": f"Screenshot {number}."},
                talk.image(30_000 + 200_000 * (number % 10 == 7)),
            ]
            messages = [*messages, {"role": "user", "content": parts}]
            last = world.ask(messages, fields, tools=TOOLS)
            messages = [*messages, *talk.step(12)]
            last = world.ask(messages, fields, tools=TOOLS)
            messages = [*messages, {"role": "assistant", "content": "I see."}]
        assert last is not None
        world.look_at_session(find_session(last))
    return world


def tell_tight_ceilings() -> World:
    """Ceilings at which hardly anything has room."""
    with make_world("tight-ceilings") as world:
        for ceiling in (2_500, 4_000, 6_000):
            history = Talk(f"tight {ceiling}").history(30, 24, turn_every=5)
            last = run_agent(world, list_requests(history), name_session(f"tight-{ceiling}", ceiling))
            world.look_at_session(find_session(last))
    return world


def tell_anonymous() -> World:
    """Sessions without a name; their ids are of chance, and so is how many tokens their references have."""
    with make_world("anonymous") as world:
        for number in range(3):
            history = Talk(f"anonymous {number}").history(36, 12, turn_every=9)
            run_agent(world, list_requests(history), {})
        history = Talk("equal").history(20, 10)
        for messages in list_requests(history):
            for _ in range(3):
                world.ask(messages, tools=TOOLS)
    return world


def read_history() -> list[list[Message]]:
    """The requests of the session whose log is kept."""
    return list_requests(Talk("kept log").history(60, 12, turn_every=9))


def tell_kept_log(*, keep: bool = True) -> World:
    """A session with epochs, pins, a revert and summaries, and short ones beside it: what the kept log is made of."""
    with make_world("step-5", keep=keep, COMPACTION__SPEND_FRACTION="1") as world:
        requests, fields = read_history(), name_session("kept", 8_000)
        for place, messages in enumerate(requests[:48]):
            more = {"x-palimpsest-pin": "true"} if place == 7 else {}
            at = f"/sessions/{find_session(world.ask(messages, {**fields, **more}, tools=TOOLS))}"
            if place in (20, 32):
                world.look(f"{at}/compact", "POST")
            if place == 40:
                world.look(f"{at}/epochs/{len(world.look(f'{at}/epochs'))}/revert", "POST")
        for number in range(4):
            run_agent(world, list_requests(Talk(f"short {number}").history(2, 6)), {}, **STREAM)
    return world


def tell_old_log() -> World:
    """The log of an earlier version opens, is whole, says the same, and its session goes on."""
    # other chance than that of the run that wrote the log: a call with an id that is in the log would not be recorded
    with make_world("old-log", log="step-5", COMPACTION__SPEND_FRACTION="1", GOLDEN_FIRST_DRAW="1000000") as world:
        for session in world.look("/sessions?limit=100"):
            world.look_at_session(session["id"])
        requests, fields = read_history(), name_session("kept", 8_000)
        for messages in (requests[30], *requests[47:]):
            last = world.ask(messages, fields, tools=TOOLS)
        world.look_at_session(find_session(last))
        world.stop()
        verified = run_command("verify", "--data", str(world.data))
        world.record("old-log/verify", "text", b"%d\n%b" % (verified.returncode, verified.stdout))
        world.start()
    return world


STORIES: dict[str, Story] = {
    "short-chats": tell_short_chats,
    "responses": tell_responses,
    "anthropic": tell_anthropic,
    "odd-bodies": tell_odd_bodies,
    **{f"agent-8000-{i}": make_agent(8_000, i, 70, 8 + 6 * i, (0, 5, 12, 30)[i]) for i in range(4)},
    **{f"agent-16000-{i}": make_agent(16_000, i, 80, 10 + 8 * i, (0, 10, 25)[i]) for i in range(3)},
    **{f"agent-32000-{i}": make_agent(32_000, i, 100, 16 + 12 * i, (0, 20)[i]) for i in range(2)},
    "branches": tell_branches,
    "side-calls": tell_side_calls,
    "restarts": tell_restarts,
    "overflows": tell_overflows,
    "refusals": tell_refusals,
    "decisions": tell_decisions,
    **{f"summaries-{i}": make_summaries(i, 60 + 40 * i) for i in range(2)},
    "plain-chat": tell_plain_chat,
    "pastes": tell_pastes,
    "pictures": tell_pictures,
    "tight-ceilings": tell_tight_ceilings,
    "anonymous": tell_anonymous,
    "old-log": tell_old_log,
}
