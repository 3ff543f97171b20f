"""The list of keys."""

from proxy.config.keys import list_keys, name_keys


def test_every_key_and_section_says_what_it_is_for() -> None:
    assert not [key.path for key in list_keys() if len(key.description) < 15 or not key.description.endswith(".")]


def test_a_section_stands_before_its_keys() -> None:
    names = name_keys()
    assert names.index("server") < names.index("server.port") < names.index("upstreams")
    assert names.index("upstreams") < names.index("upstreams.base_url") < names.index("sessions")


def test_quantities_say_their_unit() -> None:
    units = {"_bytes": "bytes", "_timeout": "seconds", "_seconds": "seconds", "_ms": "milliseconds"}
    for key in list_keys():
        for ending, unit in units.items():
            if key.path[-1].endswith(ending):
                assert unit in key.description, key.path
