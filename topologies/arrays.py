"""Arrays by what they hold and how many dimensions they have.

Kernels declare their parameters with the aliases that name their dimensions:
`topologies.compiling` reads the compiled types from them. For a type checker they are
plain arrays, which do not know how many dimensions they have.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
HashArray = NDArray[np.uint64]
Int32Array = NDArray[np.int32]
UInt32Array = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Dimensions:
    """How many dimensions an array in C order has."""

    count: int
    """Number of dimensions."""

    is_frozen: bool = False
    """Whether the array may be read-only; a kernel cannot write to it."""


FloatVector = Annotated[FloatArray, Dimensions(1)]
FrozenFloatVector = Annotated[FloatArray, Dimensions(1, is_frozen=True)]
FloatMatrix = Annotated[FloatArray, Dimensions(2)]
FloatCube = Annotated[FloatArray, Dimensions(3)]
FloatHypercube = Annotated[FloatArray, Dimensions(4)]
IntVector = Annotated[IntArray, Dimensions(1)]
IntMatrix = Annotated[IntArray, Dimensions(2)]
IntCube = Annotated[IntArray, Dimensions(3)]
BoolVector = Annotated[BoolArray, Dimensions(1)]
BoolMatrix = Annotated[BoolArray, Dimensions(2)]
HashVector = Annotated[HashArray, Dimensions(1)]
Int32Vector = Annotated[Int32Array, Dimensions(1)]
Int32Matrix = Annotated[Int32Array, Dimensions(2)]
UInt32Vector = Annotated[UInt32Array, Dimensions(1)]
