"""What is measured: a mock itself (direct), nginx, and palimpsest with either durability, or managing otherwise.

The rule: every target is reached at http://127.0.0.1:PORT/v1 and runs on the measured core; proxies forward to the same
mock on the other core and keep all their files in the run's own folder.  Direct is a mock of its own *on the measured
core*: a call without a proxy crosses from one core to another too, and must not look cheaper for staying on one.
`direct-near`, for comparison, is the mock beside the load generator.
"""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import Child, Nursery, find_free_port, wait_for_answer

NAMES = ("direct", "nginx", "palimpsest", "palimpsest-full")
# Options of `serve` besides the common ones. Under a ceiling of 16K all but the shortest sessions are in an epoch.
_VARIANTS: dict[str, tuple[str, ...]] = {
    "palimpsest": (),
    "palimpsest-full": ("--durability", "full"),
    "palimpsest-observe": ("--mode", "observe"),
    "palimpsest-16k": ("--ceiling", "16000"),
    "palimpsest-32k": ("--ceiling", "32000"),
    "palimpsest-200k": ("--ceiling", "200000"),
    "palimpsest-before": (),
}
OPTIONAL_NAMES = (
    "direct-near",
    "palimpsest-observe",
    "palimpsest-16k",
    "palimpsest-32k",
    "palimpsest-200k",
    "palimpsest-before",
)
_CORES = sorted(os.sched_getaffinity(0))
MEASURED_CORE = _CORES[0]
HARNESS_CORE = _CORES[-1]
LIFETIME = 1800

_NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
{user}
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_max_body_size 64m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    tcp_nodelay on;
    upstream mock {{
        server 127.0.0.1:{upstream};
        keepalive 512;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://mock;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Target:
    """One column of the report; `direct` has no process that is watched."""

    name: str
    port: int
    child: Child | None = None
    data: Path | None = None
    start_seconds: float = 0.0

    @property
    def is_palimpsest(self) -> bool:
        return self.data is not None


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the run's processes live and what they talk to."""

    nursery: Nursery
    folder: Path
    mock: Child
    upstream: int
    command: str
    before: str = ""  # the command of `palimpsest-before`, another version
    serve_options: tuple[str, ...] = ()


def find_command() -> str:
    """The palimpsest of this interpreter's environment."""
    return str(Path(sys.executable).with_name("palimpsest"))


def start_mock(nursery: Nursery, core: int) -> tuple[Child, int]:
    """Start a mock upstream; the process and its port."""
    argv = [sys.executable, "-m", "benchmarks.mock_upstream", "--lifetime", str(LIFETIME)]
    child = nursery.start(argv, core, talks=True)
    return child, int(child.read_line())


def start_load(nursery: Nursery) -> Child:
    """Start the load generator."""
    argv = [sys.executable, "-m", "benchmarks.load", "--lifetime", str(LIFETIME)]
    return nursery.start(argv, HARNESS_CORE, talks=True)


def start_nginx(setting: Setting) -> Target:
    """Start nginx with one worker, streaming both ways, connections kept open both ways."""
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    folder = setting.folder / "nginx"
    folder.mkdir()
    port = find_free_port()
    user = "user root root;" if os.geteuid() == 0 else ""  # the worker must reach the run's private folder
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, user=user, upstream=setting.upstream, port=port))
    child = setting.nursery.start([binary, "-p", str(folder), "-c", str(config)], MEASURED_CORE)
    wait_for_answer(child, port, "/v1/models", 10)
    return Target("nginx", port, child)


def start_palimpsest(setting: Setting, name: str) -> Target:
    """Start palimpsest on an empty data folder; only `palimpsest-full` waits for the disk."""
    folder = Path(tempfile.mkdtemp(prefix=name, dir=setting.folder))
    port = find_free_port()
    argv = [
        setting.before if name == "palimpsest-before" else setting.command,
        "serve",
        *("--upstream", f"http://127.0.0.1:{setting.upstream}/v1"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--data", str(folder)),
        *("--admin-token", "bench"),
        *_VARIANTS[name],
        *setting.serve_options,
    ]
    begun = time.monotonic()
    child = setting.nursery.start(argv, MEASURED_CORE)
    wait_for_answer(child, port, "/-/live", 30)
    return Target(name, port, child, folder, time.monotonic() - begun)


def start_target(setting: Setting, name: str) -> Target:
    """Start one target by its name."""
    if name == "direct":
        return Target(name, start_mock(setting.nursery, MEASURED_CORE)[1])
    if name == "direct-near":
        return Target(name, setting.upstream)
    if name == "nginx":
        return start_nginx(setting)
    return start_palimpsest(setting, name)
