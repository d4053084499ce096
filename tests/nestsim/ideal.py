"""Shipped scenarios without what their software adds."""

from pathlib import Path

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def ideal_text(name: str) -> str:
    """Return a scenario whose times are those of the devices and the wire alone."""
    text = (SCENARIOS / f"{name}.toml").read_text(encoding="utf-8")
    return text.replace('preset = "megatron-core"', 'preset = "ideal"')
