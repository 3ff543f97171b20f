"""The console script: starts the command line of the package `proxy`, or says which other package has that name.

It is no part of that package, so that it can be imported where another one is found in its place.
"""

import sys
from importlib.metadata import packages_distributions

try:
    from proxy.__main__ import main as start
except ImportError:
    if (getattr(sys.modules.get("proxy"), "__doc__", "") or "").startswith("palimpsest:"):
        raise
    start = None


def main() -> None:
    """Run the command line."""
    if start is not None:
        return start()
    place = getattr(sys.modules.get("proxy"), "__file__", None) or "nowhere"
    others = [name for name in packages_distributions().get("proxy", ()) if name != "palimpsest"]
    named = f", of {' and '.join(others)}," if others else ""
    sys.exit(
        f"palimpsest: the package `proxy` that Python finds here{named} is not palimpsest's: {place}. "
        "Install palimpsest in an environment of its own, as `make install` does, or uninstall the other one "
        "and install palimpsest anew."
    )
