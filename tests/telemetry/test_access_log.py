"""The access log: a line for each request, written once its response was read, without anything private."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.epoch import Plan
from proxy.model.events import AnswerRead, CallUnreadableEvent, Event, ExchangeRecorded, Planned
from proxy.model.exchange import Usage
from proxy.telemetry.access_log import AccessLog
from proxy.telemetry.log_lines import ACCESS, TextLines

RECORDED = ExchangeRecorded(
    *("e1", "s1", "managed", "chat", "openai", 200, "complete", 10, 20, 0.1, 0.2),
    is_readable=True,
    model="gpt-5",
)


class Serving:
    """An application that publishes what a call publishes, behind the access log."""

    def __init__(self, *events: Event, status: int = 200) -> None:
        self.bus = EngineBus(TaskRunner())
        self.log = AccessLog(self.app, lambda scope: status, iter(range(0, 1000, 2)).__next__)
        self.log.subscribe(self.bus)
        self._events = events

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request."""
        for event in self._events:
            self.bus.publish(event)

    async def ask(self, path: str = "/v1/chat/completions") -> None:
        """Make a request."""
        scope = {"method": "POST", "path": path, "query_string": b"key=secret", "client": ("10.0.0.1", 5)}
        await self.log(scope, None, None)  # type: ignore[arg-type]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What was written, without the time."""
    written: list[str] = []

    class Keeper(logging.Handler):
        """Keeps what is logged."""

        def emit(self, record: logging.LogRecord) -> None:
            written.append(TextLines().format(record).split(" request served ")[1])

    logger, keeper = logging.getLogger(ACCESS), Keeper()
    logger.addHandler(keeper)
    logger.setLevel(logging.INFO)
    yield written
    logger.removeHandler(keeper)
    logger.setLevel(logging.NOTSET)


async def test_a_request_that_is_no_call_is_written_at_once(lines: list[str]) -> None:
    await Serving(status=401).ask("/-/api/sessions")
    assert lines == ["method=POST path=/-/api/sessions status=401 seconds=2 client=10.0.0.1"]


@pytest.mark.parametrize(("status", "count"), [(200, 0), (503, 1)])
async def test_a_probe_is_written_only_if_it_fails(lines: list[str], status: int, count: int) -> None:
    await Serving(status=status).ask("/-/ready")
    assert len(lines) == count


async def test_a_call_is_written_once_its_response_was_read(lines: list[str]) -> None:
    plan = Plan("e1", 0, "view", "epoch", tokens_client=900, tokens_upstream=300)
    serving = Serving(Planned("s1", plan), RECORDED)
    await serving.ask()
    assert lines == []
    serving.bus.publish(AnswerRead("e1", 0, Usage(input=310, output=7, cached=256)))
    assert lines == [
        "method=POST path=/v1/chat/completions status=200 seconds=2 client=10.0.0.1 session=s1 exchange=e1"
        " upstream=openai model=gpt-5 completeness=complete client_tokens=900 sent_tokens=300 input_tokens=310"
        " cached_tokens=256 output_tokens=7"
    ]


async def test_a_line_has_the_time_at_which_the_request_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger(ACCESS), "handle", kept.append)
    monkeypatch.setattr(logging.getLogger(ACCESS), "isEnabledFor", lambda level: True)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    serving = Serving(RECORDED)
    await serving.ask()
    monkeypatch.setattr("time.time", lambda: 2000.0)
    serving.bus.publish(AnswerRead("e1", 0))
    assert [record.created for record in kept] == [1000.0]


async def test_a_response_that_was_read_before_the_request_ended_or_cannot_be_read_is_no_matter(
    lines: list[str],
) -> None:
    await Serving(RECORDED, AnswerRead("e1", 0, Usage(output=7))).ask()
    await Serving(RECORDED, CallUnreadableEvent(exchange="e1", error="no JSON")).ask()
    assert [line.partition("completeness=")[2] for line in lines] == ["complete output_tokens=7", "complete"]


async def test_the_tokens_of_several_rounds_are_added_up_and_our_own_calls_are_not_the_clients(
    lines: list[str],
) -> None:
    own = ExchangeRecorded("e9", "s9", "auxiliary", "chat", "openai", 200, "complete", 1, 1, 0.1, 0.1, is_readable=True)
    first = AnswerRead("e1", 0, Usage(input=5, output=2), is_hidden=True)
    second = AnswerRead("e1", 1, Usage(input=6, output=3))
    hidden = replace(RECORDED, is_final=False)
    await Serving(hidden, first, RECORDED, second, own).ask()
    assert [line.partition("session=")[2] for line in lines] == [
        "s1 exchange=e1 upstream=openai model=gpt-5 completeness=complete input_tokens=11 output_tokens=5"
    ]


async def test_lines_that_wait_are_written_when_the_server_ends_or_too_many_wait(lines: list[str]) -> None:
    serving = Serving(RECORDED)
    await serving.ask()
    serving.log.close()
    assert len(lines) == 1
    numbers = iter(range(2000))
    busy = Serving()
    busy.bus = EngineBus(TaskRunner())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        busy.bus.publish(replace(RECORDED, exchange=f"e{next(numbers)}"))

    busy.log = AccessLog(app, lambda scope: 200)
    busy.log.subscribe(busy.bus)
    for _ in range(1001):
        await busy.ask()
    assert len(lines) == 2
    assert " exchange=e0 " in lines[1]
