"""What sizes of a model may be."""

from typing import Annotated, Literal

from pydantic import Field

from estimators.models.limits import (
    MAX_DEPTHS,
    MAX_LAYERS,
    MAX_SEQUENCE,
    MAX_VOCABULARY,
    MAX_WIDTH,
)

NumLayers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Depths = Annotated[int, Field(ge=0, le=MAX_DEPTHS)]
SequenceLength = Annotated[int, Field(ge=1, le=MAX_SEQUENCE)]
Vocabulary = Annotated[int, Field(ge=1, le=MAX_VOCABULARY)]
Attention = Literal["flash", "plain"]
Probability = Annotated[float, Field(ge=0, lt=1)]
