"""The agent clients: whole programs, started headless. Rule: what is masked of their requests is named with its reason."""

from tests.clients.client import Client

AGENTS: tuple[Client, ...] = ()
