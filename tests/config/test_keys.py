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


def test_the_keys_below_names_of_the_users_own_are_known_too() -> None:
    assert {"pricing", "pricing.MODEL.input", "pricing.MODEL.retention_seconds"} <= set(name_keys())
    assert "pricing.MODEL.input" not in {".".join(key.path) for key in list_keys()}


def test_what_is_not_set_is_automatic() -> None:
    defaults = {".".join(key.path): key.default for key in list_keys()}
    assert defaults["budget.ceiling_tokens"] == defaults["upstreams.window"] == "auto"
