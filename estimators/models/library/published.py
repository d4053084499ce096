"""An entry of the library of models."""

from typing import NamedTuple

from estimators.models.spec import TransformerSpec


class PublishedModel(NamedTuple):
    """An entry of the library."""

    spec: TransformerSpec
    """Architecture of the model, at the sequence length that it was mainly trained
    with."""

    source: str
    """Publication of the model, and what was chosen where it is silent."""
