"""The place from which programs import the events that they are told of (`docs/events.md`)."""

from proxy.model.events import *  # noqa: F403 - the same names
