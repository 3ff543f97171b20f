"""The entry point of `python -m proxy` and of the console script: connects the command line to what it calls."""

import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any

from proxy.cli.main import run


def main() -> None:
    """Run the command line."""
    # While modules are imported the collector would run all the time, in vain: a sixth of the start.
    # `proxy.cli.main` turns it on again.
    gc.disable()
    run(
        import_later("proxy.cli.services", "Services")(
            serve=import_later("proxy.app", "serve"),
            open_log=import_later("proxy.reading", "open_log"),
            open_index=import_later("proxy.indexing", "open_index"),
            update_index=import_later("proxy.indexing", "update_index"),
            erase_session=import_later("proxy.indexing", "erase_session"),
            build_tally=import_later("proxy.reading", "build_tally"),
            load_savings_inputs=import_later("proxy.reading", "measure"),
            ask_server=import_later("proxy.running", "ask_server"),
            follow_events=import_later("proxy.running", "follow_events"),
            find_link=import_later("proxy.running", "find_link"),
            find_server=import_later("proxy.running", "find_server"),
            use_data=import_later("proxy.shutdown", "use_data"),
            serve_mcp=import_later("proxy.app", "serve_mcp"),
            diagnose=import_later("proxy.doctor.examination", "diagnose"),
            run_demo=import_later("proxy.demo.runner", "run_demo"),
            run_trial=import_later("proxy.trial.trial", "run_trial"),
        )
    )


def import_later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls another one, and imports it then, so that a command pays only for what it needs."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **options)

    return call


if __name__ == "__main__":
    main()
