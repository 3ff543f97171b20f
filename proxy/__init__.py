"""palimpsest: a transparent reverse proxy for LLM APIs that records and manages an LLM agent's context.

Each layer imports only from the layers below it (ARCHITECTURE.md). The import contracts in pyproject.toml enforce this.
"""

__version__ = "0.1.0"
