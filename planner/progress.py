"""How long work reports on itself."""

from collections.abc import Callable

Progress = Callable[[str, float | None], None]
"""Called with what is being done and the share of it that is done, None if unknown."""
