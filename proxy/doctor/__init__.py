"""Gathers what `palimpsest doctor` judges: settings, log, disk, upstreams, the running server, a rehearsed session."""
