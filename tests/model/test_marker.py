"""The ledger's own words survive every serializer."""

import json

from proxy.model.messages import LEDGER_HEAD


def test_the_head_of_a_ledger_is_the_same_in_json() -> None:
    assert json.dumps(LEDGER_HEAD) == f'"{LEDGER_HEAD}"'
    assert len(LEDGER_HEAD) >= 16
    assert LEDGER_HEAD.isascii()
