"""How many examples hypothesis tries of a property that takes longer, or shorter, than most."""

from typing import Any

from hypothesis import settings


def examples(count: int, **options: Any) -> settings:
    """So many of a hundred; a profile that asks for more than a hundred gets as many times more (`tests/conftest`)."""
    return settings(max_examples=max(1, count * settings().max_examples // 100), deadline=None, **options)
