"""The entry point of `python -m proxy` and of the console script: connects the command line to what it calls."""

from proxy.app import serve
from proxy.assembly import ask_server, build_tally, find_link, find_server, measure, open_log
from proxy.cli.main import run
from proxy.cli.services import Services
from proxy.shutdown import use_data


def main() -> None:
    """Run the command line."""
    run(
        Services(
            serve=serve,
            open_log=open_log,
            count_tokens=build_tally(),
            load_savings_inputs=measure,
            ask_server=ask_server,
            find_link=find_link,
            find_server=find_server,
            use_data=use_data,
        )
    )


if __name__ == "__main__":
    main()
