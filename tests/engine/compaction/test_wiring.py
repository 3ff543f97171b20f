"""Compaction put together: what hears of calls, and what knows of today's spending."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.model.events import ExchangeRecorded
from tests.support.compacting import FREE, Workshop
from tests.support.memory_store.archive import MemoryArchive


class BrokenLog(MemoryArchive):
    """Cannot say what was spent."""

    async def sum_auxiliary(self, since_ms: int) -> Any:
        raise StoreUnavailable("not now")


async def test_who_calls_the_worker_hears_of_every_call() -> None:
    shop = Workshop()
    assert shop.watch.note_exchange in shop.bus._by_type[ExchangeRecorded]
    assert len(shop.tasks) == 0
    desk = shop.drafter._desk
    assert shop.worker._shop.keys is shop.watch._keys is desk.office.keys
    assert shop.worker._shop.purse is shop.watch._purse is desk.office.purse
    assert shop.worker._shop.memory is shop.memory


@pytest.mark.parametrize(("archive", "is_open"), [(MemoryArchive, True), (BrokenLog, False)])
async def test_where_a_day_has_a_cap_what_was_spent_is_read_first(archive: Any, is_open: bool) -> None:
    shop = Workshop(policy=replace(FREE, spend_per_day=1.0), archive=archive())
    assert not shop.watch._purse._is_open
    await shop.settle()
    assert shop.watch._purse._is_open == is_open


async def test_more_turns_can_be_kept_out_of_reports_than_out_of_plans() -> None:
    surveys = []
    for turns in (2, 5):
        shop = Workshop(policy=replace(FREE, protect_turns=turns))
        messages = [{"role": role, "content": f"{role} {i}"} for i in range(8) for role in ("user", "assistant")]
        surveys.append(await shop.worker._survey(await shop.look_at(messages)))
    assert [len(survey.newest) for survey in surveys] == [2, 5]
