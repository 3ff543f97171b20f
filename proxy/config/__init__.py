"""What a person can set. Rule: one tree, composed of the rooms' own policies; only here is the environment read."""

from proxy.config.loading import load_settings
from proxy.config.problems import ConfigError
from proxy.config.settings import Settings

__all__ = ["ConfigError", "Settings", "load_settings"]
