"""The settings: a tree of sections from flags, environment and a file. Nothing else reads the environment."""

from proxy.config.errors import ConfigError
from proxy.config.loading import find_memory_folder, load_settings, make_settings, read_environment
from proxy.config.settings import Settings

__all__ = ["ConfigError", "Settings", "find_memory_folder", "load_settings", "make_settings", "read_environment"]
