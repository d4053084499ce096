"""The library's modules in torch's own words, by name: what tests compute with."""

from typing import Any

from estimators.models.vocabulary import WRITTEN_IN_WORDS, torch_module


def __getattr__(name: str) -> Any:
    if name in WRITTEN_IN_WORDS:
        return torch_module(name)
    for part in sorted(WRITTEN_IN_WORDS):
        if hasattr(torch_module(part), name):
            return getattr(torch_module(part), name)
    raise AttributeError(name)
