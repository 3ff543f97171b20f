"""What a person has decided, as documents."""

from proxy.context.pricing import RevertPrice
from proxy.engine.reports.context import Pinned, Reversion, describe_pinned, describe_reversion
from tests.engine.reports.test_contexts import EPOCH
from tests.support.fake_log import EXCHANGE


def test_a_price_has_its_unit() -> None:
    reversion = Reversion(EPOCH, RevertPrice(once=10.0, each=-1.0, tokens=900, is_lasting=True), 300)
    told = describe_reversion(reversion, is_done=True)
    assert told == {
        "is_done": True,
        "epoch": "e1",
        "depth": 4,
        "tokens_now": 300,
        "tokens_then": 900,
        "price": {"once": 10.0, "each": -1.0, "unit": "tokens of uncached input"},
        "is_lasting": True,
    }
    assert describe_reversion(reversion, is_done=False)["epoch"] is None


def test_a_pin_has_the_beginning_of_its_text() -> None:
    raw = b'{"role":"user","content":"%b"}' % (b"x" * 300)
    told = describe_pinned(Pinned(b"\x01", EXCHANGE, 4, raw, 75))
    assert told == {"node": "01", "exchange": 1, "place": 4, "role": "user", "text": "x" * 200, "tokens": 75}
    assert describe_pinned(Pinned(b"\x01")) == dict.fromkeys(told, None) | {"node": "01"}
