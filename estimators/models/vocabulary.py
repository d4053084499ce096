"""What models are written in: torch's words, by default without torch.

A module of a model begins with

    from estimators.models.vocabulary import F, Tensor, nn, torch

and goes on as under torch: type checkers see torch itself. Run, the words stand for
shapes alone (`estimators.models.shapes`), which is all that a layer's table needs.
`torch_module` returns the same module with torch's own words, for what computes with
numbers: measurements, and tests.
"""

import builtins
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache, partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from estimators.models import shapes
from topologies.errors import import_extra

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F  # noqa: N812  # its customary name

__all__ = ["F", "Tensor", "nn", "torch", "torch_module"]


class HeldTensor(shapes.Tensor):
    """A tensor that a module holds."""

    __slots__ = ()

    def __init__(self, tensor: shapes.Tensor) -> None:
        super().__init__(tensor.shape)


class Module:
    """A part of a model: parameters, other modules, and what it does with shapes."""

    training = True
    forward: Callable[..., Any]
    """What the module does."""

    def __call__(self, *arguments: Any) -> Any:
        """Call `forward`, or let the tracer of the arguments do so."""
        given = (part for part in arguments if isinstance(part, shapes.Tensor))
        tracer = next((part.tracer for part in given if part.tracer), None)
        if tracer is None:
            return self.forward(*arguments)
        return tracer.call_module(self, arguments)

    def register_parameter(self, name: str, parameter: HeldTensor | None) -> None:
        """Hold a parameter, or say that there is none."""
        setattr(self, name, parameter)

    def register_buffer(self, name: str, tensor: shapes.Tensor | None) -> None:
        """Hold a tensor that is no parameter."""
        setattr(self, name, tensor)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, "Module"]]:
        """Return this module and all within, each with its path."""
        yield prefix, self
        for name, part in vars(self).items():
            if isinstance(part, Module):
                yield from part.named_modules(f"{prefix}.{name}".lstrip("."))

    def named_parameters(
        self, prefix: str, *, recurse: bool
    ) -> Iterator[tuple[str, HeldTensor]]:
        """Return the parameters that this module itself holds, each with its path."""
        assert not recurse, "those of modules within are theirs"
        for name, part in vars(self).items():
            if isinstance(part, HeldTensor):
                yield f"{prefix}.{name}".lstrip("."), part


class ModuleList(Module):
    """Modules by their numbers."""

    def __init__(self, modules: Iterable[Module]) -> None:
        for place, module in enumerate(modules):
            setattr(self, str(place), module)

    def __iter__(self) -> Iterator[Module]:
        return iter(vars(self).values())


class Linear(Module):
    """A product with a weight."""

    bias: HeldTensor | None

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = True
    ) -> None:
        self.in_features = in_features
        self.weight = HeldTensor(shapes.Tensor((out_features, in_features)))
        self.bias = HeldTensor(shapes.Tensor((out_features,))) if bias else None

    def forward(self, tensor: shapes.Tensor) -> Any:
        """Return the product."""
        return shapes.call("linear", tensor, self.weight, self.bias)


class Embedding(Module):
    """Rows of a table."""

    def __init__(self, rows: int, width: int) -> None:
        self.weight = HeldTensor(shapes.Tensor((rows, width)))

    def forward(self, ids: shapes.Tensor) -> Any:
        """Return the rows with some numbers."""
        return shapes.call("embedding", ids, self.weight)


class LayerNorm(Module):
    """A norm over the last axis."""

    weight: HeldTensor | None
    bias: HeldTensor | None

    def __init__(
        self,
        width: int,
        eps: float = 1e-5,
        *,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        self.eps = eps
        shape = shapes.Tensor((width,))
        self.weight = HeldTensor(shape) if elementwise_affine else None
        self.bias = HeldTensor(shape) if elementwise_affine and bias else None

    def forward(self, tensor: shapes.Tensor) -> Any:
        """Return a tensor of the same shape."""
        return shapes.call("layer_norm", tensor)


class Conv2d(Module):
    """A convolution of images without padding."""

    def __init__(self, colours: int, width: int, size: int, stride: int) -> None:
        self.stride = stride
        self.weight = HeldTensor(shapes.Tensor((width, colours, size, size)))
        self.bias = HeldTensor(shapes.Tensor((width,)))

    def forward(self, images: shapes.Tensor) -> Any:
        """Return an image of places."""
        return shapes.call("conv2d", images, self.weight, self.bias, self.stride)


class Dropout(Module):
    """Zeros at random."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def forward(self, tensor: shapes.Tensor) -> Any:
        """Return a tensor of the same shape."""
        return shapes.call("dropout", tensor)


class Identity(Module):
    """Nothing."""

    def forward(self, tensor: shapes.Tensor) -> shapes.Tensor:
        """Return what it is given."""
        return tensor


def _elementwise(name: str, function: str) -> type[Module]:
    """Return a module of a function of each element."""

    def forward(self: Module, tensor: shapes.Tensor) -> Any:  # noqa: ARG001  # a method
        return shapes.call(function, tensor)

    return type(name, (Module,), {"forward": forward})


class _Functions:
    """A namespace of functions: those of `shapes.FUNCTIONS` by their names."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in shapes.FUNCTIONS:
            raise AttributeError(f"estimators.models.shapes has no row for {name}")
        return partial(shapes.call, name)


def _create(*sizes: Any, dtype: str = "float32", **_: Any) -> shapes.Tensor:
    """Return a new tensor of sizes that are given one by one, or as a tuple."""
    shape = sizes[0] if sizes and isinstance(sizes[0], tuple) else sizes
    return shapes.Tensor(shape, dtype)


def _range(*bounds: int, **_: Any) -> shapes.Tensor:
    return shapes.Tensor((len(range(*bounds)),))


class _Torch(_Functions):
    """Stands for torch."""

    empty = ones = zeros = staticmethod(_create)
    full = staticmethod(lambda sizes, _: _create(sizes))
    arange = staticmethod(_range)
    device = nullcontext
    bool, int32, long = "bool", "int32", "long"


if not TYPE_CHECKING:
    Tensor, torch, F = shapes.Tensor, _Torch(), _Functions()
    nn = SimpleNamespace(
        Module=Module,
        ModuleList=ModuleList,
        Parameter=HeldTensor,
        Linear=Linear,
        Embedding=Embedding,
        LayerNorm=LayerNorm,
        Conv2d=Conv2d,
        Dropout=Dropout,
        Identity=Identity,
        GELU=_elementwise("GELU", "gelu"),
        ReLU=_elementwise("ReLU", "relu"),
        SiLU=_elementwise("SiLU", "silu"),
        Sigmoid=_elementwise("Sigmoid", "sigmoid"),
        Tanh=_elementwise("Tanh", "tanh"),
        init=SimpleNamespace(
            normal_=lambda tensor, **_: tensor, uniform_=lambda tensor, *_: tensor
        ),
    )


@cache
def torch_module(name: str) -> ModuleType:
    """Return a module of `estimators.models` with torch's own words.

    Its classes compute; they are others than those that are imported by its name. What
    it imports of other modules that are written in these words has torch's, too.

    Parameters
    ----------
    name
        Of the module, "layers".

    Raises
    ------
    InputError
        If torch is not installed.
    """
    real = import_extra("torch", "trace")
    words = {
        "torch": real,
        "nn": real.nn,
        "F": real.nn.functional,
        "Tensor": real.Tensor,
    }

    def import_module(
        path: str, *rest: Any, **options: Any
    ) -> ModuleType | SimpleNamespace:
        if path == __name__:
            return SimpleNamespace(**words)
        package, _, last = path.rpartition(".")
        if package == __package__ and last in WRITTEN_IN_WORDS:
            return torch_module(last)
        return builtins.__import__(path, *rest, **options)

    path = f"{__package__}.{name}"
    found = importlib.util.find_spec(path)
    assert found is not None, "a module of this package"
    module = ModuleType(f"{path} with torch")
    imports: Mapping[str, Any] = {**vars(builtins), "__import__": import_module}
    module.__dict__["__builtins__"] = imports
    exec(found.loader.get_code(path), module.__dict__)  # type: ignore[union-attr]  # a file's loader
    return module


WRITTEN_IN_WORDS = frozenset(
    {
        "attention",
        "diffusion_blocks",
        "encoders",
        "families",
        "hyper_connections",
        "layers",
        "linear_attention",
        "sparse_attention",
        "vision_tower",
    }
)
"""Modules that are written in these words."""
