"""palimpsest: a transparent, OpenAI-compatible reverse proxy that records and manages an LLM agent's context.

Rule: rooms import only what lies below them (ARCHITECTURE.md); the contracts in pyproject.toml hold it.
"""

__version__ = "0.1.0"
