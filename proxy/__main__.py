"""The entry point of `python -m proxy` and of the console script: connects the command line to what it calls."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from proxy.assembly import build_tally, erase_session, measure, open_index, open_log, update_index
from proxy.cli.main import run
from proxy.cli.services import Services
from proxy.running import ask_server, find_link, find_server


def main() -> None:
    """Run the command line."""
    run(
        Services(
            serve=import_later("proxy.app", "serve"),
            open_log=open_log,
            open_index=open_index,
            update_index=update_index,
            count_tokens=build_tally(),
            load_savings_inputs=measure,
            ask_server=ask_server,
            erase_session=erase_session,
            find_link=find_link,
            find_server=find_server,
            use_data=import_later("proxy.shutdown", "use_data"),
            serve_mcp=import_later("proxy.app", "serve_mcp"),
        )
    )


def import_later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls another one, and imports it then.

    The HTTP server and its libraries are a sixth of what there is to import, and most commands need neither.
    """

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **options)

    return call


if __name__ == "__main__":
    main()
