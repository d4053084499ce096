"""Named models, each with the place where its architecture was published.

Parameter counts that follow from these entries are tested against the published
ones to the unit, where one was published to the unit.
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimators.models.library import (
    experts,
    gemma,
    gpt,
    gpt_like,
    llama,
    llama_like,
    mamba,
    qwen,
    t5,
    vit,
)
from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec, with_sequence_length
from topologies.errors import InputError

LIBRARY: Mapping[str, PublishedModel] = MappingProxyType(
    {
        name: model
        for family in (
            gpt,
            llama,
            gpt_like,
            llama_like,
            qwen,
            gemma,
            experts,
            mamba,
            t5,
            vit,
        )
        for name, model in family.MODELS.items()
    }
)
"""Name -> architecture and source."""


def model_names() -> tuple[str, ...]:
    """Return the names that `load_model` knows, families together, small to large."""
    return tuple(LIBRARY)


def load_model(
    name: str,
    *,
    sequence_length: int | None = None,
    attention_implementation: str | None = None,
) -> TransformerSpec:
    """Return a model of the library.

    Parameters
    ----------
    name
        One of `model_names`; upper case and underscores are forgiven.
    sequence_length
        Instead of the library's. A learned position embedding has as many rows as
        published, or as many as are needed if that is more.
    attention_implementation
        ``"flash"`` or ``"plain"`` instead of the library's ``"flash"``.

    Raises
    ------
    InputError
        If there is no such model, or a value is not possible.
    """
    key = name.lower().replace("_", "-")
    if key not in LIBRARY:
        near = difflib.get_close_matches(key, LIBRARY, n=1, cutoff=0.5)
        raise InputError(
            "no such model",
            where="name",
            got=name,
            expected="one of " + ", ".join(LIBRARY),
            hint=f'did you mean "{near[0]}"?' if near else "",
        )
    spec = LIBRARY[key].spec
    if attention_implementation is not None:
        spec = replace(spec, attention_implementation=attention_implementation)
    if sequence_length is not None:
        spec = with_sequence_length(spec, sequence_length)
    return spec
