"""Loops over cases that fail once, after the last case, and name each case that failed.

A case of pytest's own costs milliseconds and a line of the report. Where cases are
cheap and share what they are set up with, a test runs through them:

    @failures.over("size, hops", [(8, 1), (64, 3)])
    def test_hops(size: int, hops: int) -> None:
        assert tree(size).hops == hops

    def test_hops() -> None:
        with failures.collected() as case:
            for size, hops in ((8, 1), (64, 3)):
                with case(size):
                    assert tree(size).hops == hops
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any

import pytest


@contextmanager
def collected() -> Iterator[Callable[[object], AbstractContextManager[None]]]:
    """Give the context of a case, by its name; raise what cases raised at the end.

    A case that is skipped skips no other; the test is skipped where all of them are.
    """
    errors: list[BaseException] = []
    skipped: list[str] = []
    count = 0

    @contextmanager
    def case(name: object) -> Iterator[None]:
        nonlocal count
        count += 1
        try:
            yield
        except pytest.skip.Exception as skip:
            skipped.append(str(skip))
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"in case {count}: {name}")
            if "from pytest-timeout" in str(error):
                raise  # its clock runs once a test
            errors.append(error)

    yield case
    assert count, "no case was tried"
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} of {count} cases failed", errors)
    if len(skipped) == count:
        pytest.skip("; ".join(sorted({*skipped})))


def over(
    parameters: str | Sequence[str],
    values: Iterable[Any],
    ids: Callable[[Any], object] | Iterable[object] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with all values, like ``pytest.mark.parametrize``, but as one test.

    Two of them make all pairs. Cases share the test's fixtures, but for
    ``monkeypatch``, ``tmp_path``, ``capsys`` and ``caplog``, which a case finds as if
    it were the first.
    """
    split = parameters.split(",") if isinstance(parameters, str) else parameters
    names = [name.strip() for name in split]
    alone = parameters == names[0]
    cases = [_case(names, value, alone) for value in values]
    if callable(ids):
        labels = ["-".join(str(ids(x)) for x in case.values()) for case, _ in cases]
    else:
        labels = [label for _, label in cases] if ids is None else list(ids)
    loop = [(case, label) for (case, _), label in zip(cases, labels, strict=True)]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            with collected() as case:
                for index, (arguments, label) in enumerate(loop):
                    with case(label or arguments), ExitStack() as stack:
                        fresh = _renewed(fixtures, index, stack)
                        test(**fresh, **arguments)

        signature = inspect.signature(test)
        vars(run).clear()  # Hypothesis would take the loop for its property
        run.__wrapped__ = test  # type: ignore[attr-defined]
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[
                parameter
                for name, parameter in signature.parameters.items()
                if name not in names
            ]
        )
        run.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
        return run

    return decorate


def _case(
    names: Sequence[str], value: Any, alone: bool
) -> tuple[dict[str, object], str | None]:
    """Return arguments, and a name or None, of a value as ``parametrize`` takes it."""
    label = None
    if isinstance(value, type(pytest.param())):
        assert not value.marks, "a mark needs a case of pytest's own"
        value, label = value.values, value.id
    elif alone:
        value = (value,)
    return dict(zip(names, value, strict=True)), label


def _renewed(
    fixtures: Mapping[str, Any], index: int, stack: ExitStack
) -> dict[str, Any]:
    """Return fixtures that do not show a case what earlier cases did to them."""
    renewed = dict(fixtures)
    if "monkeypatch" in renewed:
        renewed["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
    if "tmp_path" in renewed:
        renewed["tmp_path"] = renewed["tmp_path"] / str(index)
        renewed["tmp_path"].mkdir()
    if "capsys" in renewed:
        renewed["capsys"].readouterr()
    if "caplog" in renewed:
        renewed["caplog"].clear()
    return renewed
