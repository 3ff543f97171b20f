"""A kill between the two rounds of a call whose first was refused as too long."""

import asyncio
import shutil
from pathlib import Path

from proxy.assembly import open_log
from proxy.config import load_settings
from proxy.model.exchange import ClientRequest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import open_sqlite
from tests.support.engine import JSON, RecordingClient, ScriptedResponse
from tests.support.rescuing import SHORT, TOO_LONG, RescuedEngine, ScriptedRescuer, UpstreamInTurn

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}'


async def test_a_kill_between_the_rounds_leaves_a_log_that_verifies_and_says_what_came(tmp_path: Path) -> None:
    archive = open_sqlite(StorePolicy(tmp_path / "log.db", durability="normal"), asyncio.get_running_loop())
    upstream = UpstreamInTurn(ScriptedResponse(TOO_LONG, status=400, headers=JSON, ending="whole"), None)
    engine = RescuedEngine(ScriptedRescuer(), upstream, archive=archive)
    task = engine.begin(ClientRequest("POST", b"/", (), BODY), "chat_completions", RecordingClient())
    await upstream.wait_until_starved()
    archive.flush()
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path, killed, ignore=shutil.ignore_patterns("*.lock", "killed"))
    task.cancel()
    await asyncio.wait((task,))
    await archive.close()
    log = open_log(load_settings(None, {"data": killed}))
    try:
        (session,) = await log.list_sessions()
        (row,) = await log.list_exchanges(session.id)
        assert [(each.k, each.status, each.completeness) for each in row.rounds] == [(0, 400, "complete"), (1, 0, "")]
        assert await log.load_received(row.id, 0) == TOO_LONG
        assert (await log.load_request(row.id), await log.load_sent(row.id, 1)) == (BODY, SHORT)
        assert (await log.verify()).faults == ()
    finally:
        await log.close()
