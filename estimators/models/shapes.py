"""Tensors that have a shape and no numbers, and what functions make of shapes.

Models are written in torch's words (`estimators.models.vocabulary`). A layer's table
follows from shapes alone, for which torch need not be there: here each of the functions
that models call is a row of `FUNCTIONS`, from arguments to the shapes of its results,
by the rules of torch [1]_. A function that a new model needs is one row more. Tests
hold every layer that is traced this way to the trace of torch's own tensors.

References
----------
.. [1] PyTorch's documentation: "Broadcasting semantics", ``torch.Tensor.view``,
   ``chunk``, ``matmul``, ``torch.nn.functional.scaled_dot_product_attention``.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

Shape = tuple[int, ...]


class Tracer(Protocol):
    """What sees the calls that the tensors of a layer take part in."""

    def call_function(
        self, name: str, inputs: Sequence["Tensor"], results: Sequence["Tensor"]
    ) -> None:
        """See a function, by its name in `FUNCTIONS`."""

    def call_module(self, module: Any, arguments: tuple[Any, ...]) -> Any:
        """Call a module, and return its result."""


class Tensor:
    """A shape, and who sees what is done with it.

    Parameters
    ----------
    shape
        Sizes of its axes.
    dtype
        Name of its number format. Results of functions have that of the first tensor,
        as torch's views have; nobody asks for that of others.
    tracer
        What sees its calls; None for nobody.
    """

    __slots__ = ("dtype", "shape", "tracer")
    device, is_meta = "meta", True

    def __init__(
        self, shape: Shape, dtype: str = "float32", tracer: Tracer | None = None
    ) -> None:
        self.shape, self.dtype, self.tracer = shape, dtype, tracer

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def is_floating_point(self) -> bool:
        """Return whether elements are no integers."""
        return self.dtype == "float32"

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[place] for place in range(len(self)))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in FUNCTIONS:
            raise AttributeError(f"estimators.models.shapes has no row for {name}")
        return partial(call, name, self)

    def __getitem__(self, index: Any) -> "Tensor":
        picked: Tensor = call("getitem", self, index)
        return picked


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Return what a function of `FUNCTIONS` makes of shapes, and let it be seen."""
    shapes = FUNCTIONS[name](*arguments, **options)
    inputs = [part for part in arguments if isinstance(part, Tensor)]
    tracer = next((part.tracer for part in inputs if part.tracer), None)
    dtype = inputs[0].dtype if inputs else "float32"
    several = shapes if isinstance(shapes, list) else [shapes]
    results = [Tensor(shape, dtype, tracer) for shape in several]
    if tracer is not None:
        tracer.call_function(name, inputs, results)
    if name == "topk":
        return BestEntries(*results)
    return tuple(results) if isinstance(shapes, list) else results[0]


class BestEntries(NamedTuple):
    """The best entries along an axis."""

    values: Tensor
    """The entries."""

    indices: Tensor
    """Where they stand."""


def _operator(name: str) -> Callable[..., Any]:
    """Return a method of an operator."""
    return lambda *operands: call(name, *operands)


def _swapped(name: str) -> Callable[..., Any]:
    """Return a method of an operator whose first operand is no tensor."""
    return lambda right, left: call(name, left, right)


def _broadcast(*arguments: Any, **_: Any) -> Shape:
    """Return the shape of results whose elements stem from one of each argument."""
    shapes = [part.shape for part in arguments if isinstance(part, Tensor)]
    axes = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    sizes = [max(axis) if min(axis) else 0 for axis in axes]
    for shape in shapes:
        pairs = zip(reversed(shape), sizes, strict=False)
        assert all(size in {1, wide} for size, wide in pairs), f"{shapes} go together"
    return tuple(reversed(sizes))


def _same(tensor: Tensor, *_: Any, **__: Any) -> Shape:
    return tensor.shape


def _sizes(sizes: tuple[Any, ...]) -> Shape:
    """Return sizes that are given one by one or as one tuple."""
    return tuple(sizes[0]) if len(sizes) == 1 and not _is_size(sizes[0]) else sizes


def _is_size(value: object) -> bool:
    return isinstance(value, int)


def _view(tensor: Tensor, *sizes: Any) -> Shape:
    shape, whole = _sizes(sizes), tensor.numel()
    rest = whole // -math.prod(shape) if -1 in shape else 0
    filled = tuple(rest if size == -1 else size for size in shape)
    assert math.prod(filled) == whole, f"{tensor.shape} has as many as {shape}"
    return filled


def _flatten(tensor: Tensor, start_dim: int = 0, end_dim: int = -1) -> Shape:
    shape = tensor.shape
    first, last = range(len(shape))[start_dim], range(len(shape))[end_dim]
    return (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])


def _unflatten(tensor: Tensor, dim: int, sizes: Shape) -> Shape:
    axis = range(tensor.dim())[dim]
    return _view(tensor, (*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :]))


def _permute(tensor: Tensor, *dims: Any) -> Shape:
    return tuple(tensor.shape[dim] for dim in _sizes(dims))


def _transpose(tensor: Tensor, first: int, second: int) -> Shape:
    shape = list(tensor.shape)
    shape[first], shape[second] = shape[second], shape[first]
    return tuple(shape)


def _expand(tensor: Tensor, *sizes: Any) -> Shape:
    wanted = _sizes(sizes)
    before = (1,) * (len(wanted) - tensor.dim()) + tensor.shape
    shape = tuple(
        size if to == -1 else to for size, to in zip(before, wanted, strict=True)
    )
    assert _broadcast(tensor, Tensor(shape)) == shape, f"{tensor.shape} fills {shape}"
    return shape


def _repeat(tensor: Tensor, *counts: int) -> Shape:
    pairs = zip(tensor.shape, counts, strict=True)
    return tuple(size * count for size, count in pairs)


def _with_axis(tensor: Tensor, dim: int, size: int) -> Shape:
    """Return the shape with another size of an axis."""
    shape = list(tensor.shape)
    shape[dim] = size
    return tuple(shape)


def _repeat_interleave(tensor: Tensor, repeats: int, dim: int) -> Shape:
    return _with_axis(tensor, dim, tensor.shape[dim] * repeats)


def _split(tensor: Tensor, sizes: int | Sequence[int], dim: int = 0) -> list[Shape]:
    whole = tensor.shape[dim]
    if isinstance(sizes, int):
        full, rest = divmod(whole, sizes)
        sizes = [sizes] * full + [rest] * (rest > 0)
    assert sum(sizes) == whole, f"{sizes} add up to {whole}"
    return [_with_axis(tensor, dim, size) for size in sizes]


def _chunk(tensor: Tensor, chunks: int, dim: int = 0) -> list[Shape]:
    return _split(tensor, math.ceil(tensor.shape[dim] / chunks), dim)


def _tensor_split(tensor: Tensor, cuts: Sequence[int], dim: int = 0) -> list[Shape]:
    ends = [0, *cuts, tensor.shape[dim]]
    sizes = [end - start for start, end in itertools.pairwise(ends)]
    return _split(tensor, sizes, dim)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Shape:
    whole = _with_axis(tensors[0], dim, sum(part.shape[dim] for part in tensors))
    for part in tensors:
        assert _with_axis(part, dim, whole[dim]) == whole, "other axes are alike"
    return whole


def _getitem(tensor: Tensor, index: Any) -> Shape:
    """Return the shape of a part; one index may be a tensor."""
    given = index if isinstance(index, tuple) else (index,)
    used = sum(1 for part in given if part is not None and part is not Ellipsis)
    left, shape = list(tensor.shape), list[int]()
    for part in (*given, *[...] * all(part is not Ellipsis for part in given)):
        if part is None:
            shape.append(1)
        elif part is Ellipsis:
            rest = tensor.dim() - used
            shape += left[:rest]
            del left[:rest]
        elif isinstance(part, slice):
            shape.append(len(range(left.pop(0))[part]))
        elif isinstance(part, Tensor):
            shape += part.shape
            del left[0]
        else:
            _ = range(left.pop(0))[part]
    return tuple(shape)


def _reduce(tensor: Tensor, dim: int | None = None, *, keepdim: bool = False) -> Shape:
    if dim is None:
        return ()
    axis = range(tensor.dim())[dim]
    kept = (1,) if keepdim else ()
    return (*tensor.shape[:axis], *kept, *tensor.shape[axis + 1 :])


def _topk(tensor: Tensor, k: int, dim: int = -1) -> list[Shape]:
    assert k <= tensor.shape[dim], f"{k} are among {tensor.shape[dim]}"
    return [_with_axis(tensor, dim, k)] * 2


def _matmul(left: Tensor, right: Tensor) -> Shape:
    assert left.shape[-1] == right.shape[-2], f"{left.shape} by {right.shape}"
    batch = _broadcast(Tensor(left.shape[:-2]), Tensor(right.shape[:-2]))
    return (*batch, left.shape[-2], right.shape[-1])


def _linear(tensor: Tensor, weight: Tensor, bias: Tensor | None = None) -> Shape:
    assert tensor.shape[-1] == weight.shape[1], f"{tensor.shape} by {weight.shape}"
    assert bias is None or bias.shape == weight.shape[:1], "a bias for each result"
    return (*tensor.shape[:-1], weight.shape[0])


def _conv2d(images: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Shape:
    """Return the shape of a convolution without padding."""
    assert images.shape[1] == weight.shape[1], f"{images.shape} by {weight.shape}"
    sizes = zip(images.shape[2:], weight.shape[2:], strict=True)
    places = ((size - reach) // stride + 1 for size, reach in sizes)
    return (images.shape[0], bias.shape[0], *places)


def _attention(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Shape:
    assert query.shape[-1] == key.shape[-1], f"{query.shape} by {key.shape}"
    assert key.shape[-2] == value.shape[-2], f"{key.shape} by {value.shape}"
    return (*query.shape[:-1], value.shape[-1])


_ELEMENTWISE = (
    "abs clamp cos cumsum dropout exp expm1 float gelu int log long masked_fill relu "
    "rsqrt sigmoid silu sin softmax softplus sqrt square tanh to tril triu where "
    "add sub mul truediv floordiv pow neg eq ne lt le gt ge and or invert"
)

FUNCTIONS: Mapping[str, Callable[..., Shape | list[Shape]]] = MappingProxyType(
    {
        **dict.fromkeys(_ELEMENTWISE.split(), _broadcast),
        **dict.fromkeys(("argsort", "layer_norm", "roll", "scatter"), _same),
        **dict.fromkeys(("empty_like", "ones_like", "zeros_like"), _same),
        **dict.fromkeys(("mean", "sum"), _reduce),
        **dict.fromkeys(("reshape", "view"), _view),
        **dict.fromkeys(("new_empty", "new_zeros"), lambda _, *sizes: _sizes(sizes)),
        "cat": _cat,
        "chunk": _chunk,
        "conv2d": _conv2d,
        "cross_entropy": lambda _, __: (),
        "embedding": lambda ids, weight: (*ids.shape, weight.shape[1]),
        "expand": _expand,
        "expand_as": lambda tensor, other: _expand(tensor, other.shape),
        "flatten": _flatten,
        "gather": lambda _, __, index: index.shape,
        "getitem": _getitem,
        "linear": _linear,
        "matmul": _matmul,
        "new_tensor": lambda _, values: (len(values),),
        "permute": _permute,
        "repeat": _repeat,
        "repeat_interleave": _repeat_interleave,
        "scaled_dot_product_attention": _attention,
        "split": _split,
        "tensor_split": _tensor_split,
        "topk": _topk,
        "transpose": _transpose,
        "unflatten": _unflatten,
        "view_as": lambda tensor, other: _view(tensor, other.shape),
    }
)
"""Name of a function, of a tensor's method or of an operator -> from its arguments to
the shape of its result, or to a list of them."""

_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "pow", "matmul", "and", "or"]
for _name in (*_BINARY, *["eq", "ne", "lt", "le", "gt", "ge", "neg", "invert"]):
    setattr(Tensor, f"__{_name}__", _operator(_name))
for _name in _BINARY:
    setattr(Tensor, f"__r{_name}__", _swapped(_name))
