"""The settings: a tree of sections from flags, environment and a file. Nothing else reads the environment."""

from proxy.config.errors import ConfigError
from proxy.config.loading import (
    KEPT_FILE,
    find_memory_folder,
    load_report_settings,
    load_settings,
    make_settings,
    read_environment,
)
from proxy.config.settings import Settings

__all__ = [
    "KEPT_FILE",
    "ConfigError",
    "Settings",
    "find_memory_folder",
    "load_report_settings",
    "load_settings",
    "make_settings",
    "read_environment",
]
