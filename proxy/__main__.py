"""`python -m proxy` and the console script. Rule: joins the command line to the rooms it drives; nothing else."""

from proxy.app import serve
from proxy.assembly import ask_server, build_tally, find_link, measure, open_log
from proxy.cli.main import run
from proxy.cli.services import Doors


def main() -> None:
    """Run the command line."""
    run(
        Doors(serve=serve, open_log=open_log, tally=build_tally(), measure=measure, ask=ask_server, find_link=find_link)
    )


if __name__ == "__main__":
    main()
