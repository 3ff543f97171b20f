"""The network of an engine: the clients of its upstreams, and what all connections share."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from proxy.config import ConfigError, Settings
from proxy.config.errors import Problem
from proxy.engine.ports import Upstream
from proxy.engine.request_resolver import Route
from proxy.engine.runtime import Descriptors, TaskRunner, read_descriptor_limit
from proxy.model.errors import tell_install
from proxy.upstream.client import DirectClient
from proxy.upstream.litellm_library import is_installed, load_litellm
from proxy.upstream.policy import UpstreamPolicy


class ClosableUpstream(Upstream, Protocol):
    """An upstream with connections to close."""

    async def aclose(self) -> None:
        """Close them."""
        ...


Connect = Callable[[UpstreamPolicy, TaskRunner, Descriptors, str], ClosableUpstream]
"""Returns the client of an upstream, as `build_upstream` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The upstreams, and what connections share. Calls are marked with `hop_id`, so that a loop of proxies shows."""

    upstreams: list[ClosableUpstream]
    routes: list[Route]
    descriptors: Descriptors
    hop_id: str


def open_network(settings: Settings, tasks: TaskRunner, connect: Connect) -> Network:
    """Make the clients of all upstreams. Nothing is connected before the first call."""
    descriptors, hop_id = Descriptors(read_descriptor_limit()), secrets.token_hex(8)
    policies = settings.upstream_policies()
    upstreams = [connect(policy, tasks, descriptors, hop_id) for policy in policies]
    routes = [Route(each, policy.models) for each, policy in zip(upstreams, policies, strict=True)]
    return Network(upstreams=upstreams, routes=routes, descriptors=descriptors, hop_id=hop_id)


def build_upstream(
    policy: UpstreamPolicy, tasks: TaskRunner, descriptors: Descriptors, hop_id: str
) -> ClosableUpstream:
    """Return the client of an upstream. Raises ConfigError if litellm is needed and not installed.

    Only one of kind litellm needs that, whose import costs 4 s and 150 MB.
    """
    if policy.kind == "litellm":
        if not is_installed():
            what = f"{policy.name!r} is of kind litellm, which needs the extra providers: {tell_install('providers')}"
            raise ConfigError([Problem("upstreams", what)])
        from proxy.upstream.litellm_client import LitellmClient  # noqa: PLC0415 - as said above

        library = None if policy.is_deferred else load_litellm()
        return LitellmClient(policy, library, tasks.spawn, hop_id=hop_id, load=load_litellm)
    return DirectClient(policy, tasks.spawn, descriptors, hop_id=hop_id)
