"""A loop over cases tries them all, and its failure names each that failed."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import failures


def _reported(group: BaseException) -> list[tuple[str, str]]:
    """Return what each failed case raised, and its name."""
    assert isinstance(group, BaseExceptionGroup)
    return [(str(error).split("\n")[0], *error.__notes__) for error in group.exceptions]


def test_all_cases_are_tried_and_those_that_fail_are_named():
    tried = []

    def loop() -> None:
        with failures.collected() as case:
            for size in (1, 2, 3, 4):
                with case(f"size {size}"):
                    tried.append(size)
                    if size == 3:
                        raise ValueError("odd")
                    if size == 4:
                        with pytest.raises(ValueError, match="none"):
                            pass
                    assert size == 1, f"{size} is not 1"

    with pytest.raises(BaseExceptionGroup, match="3 of 4 cases failed") as raised:
        loop()
    assert tried == [1, 2, 3, 4]
    assert _reported(raised.value) == [
        ("2 is not 1", "in case 2: size 2"),
        ("odd", "in case 3: size 3"),
        ("DID NOT RAISE ValueError", "in case 4: size 4"),
    ]


def test_a_loop_without_cases_proves_nothing():
    with pytest.raises(AssertionError, match="no case"), failures.collected():
        pass
    with pytest.raises(AssertionError, match="no case"):
        failures.over("size", [])(lambda size: None)()


def test_a_case_that_is_skipped_skips_no_other():
    tried = []

    @failures.over("size", [1, 2, 3])
    def looped(size: int) -> None:
        if size in left_out:
            pytest.skip(f"no {size}")
        tried.append(size)

    left_out = {2}
    looped()
    assert tried == [1, 3]
    left_out = {1, 2, 3}
    with pytest.raises(pytest.skip.Exception, match="no 1; no 2; no 3"):
        looped()


def test_two_loops_make_all_pairs():
    pairs = []

    @failures.over("size, name", [(1, "a"), pytest.param(2, "b", id="second")])
    @failures.over("odd", [True, False], ids=["odd", "even"])
    def looped(size: int, name: str, odd: bool) -> None:
        pairs.append((size, name, odd))
        assert odd, "even"

    with pytest.raises(BaseExceptionGroup) as raised:
        looped()
    assert pairs == [(s, n, odd) for s, n in ((1, "a"), (2, "b")) for odd in (1, 0)]
    first, second = raised.value.exceptions
    assert _reported(first) == _reported(second) == [("even", "in case 2: even")]
    assert first.__notes__ == ["in case 1: {'size': 1, 'name': 'a'}"]
    assert second.__notes__ == ["in case 2: second"]


@failures.over("key", ["a", "b", "a"])
@pytest.mark.parametrize("more", [1, 2])
def test_no_case_sees_what_an_earlier_case_left(
    key: str,
    more: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    assert Path(request.node.location[0]).name == "test_failures.py"
    assert more in (1, 2)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / key).touch()
    assert not hasattr(pytest, "left_behind")
    monkeypatch.setattr(pytest, "left_behind", key, raising=False)
    assert capsys.readouterr().out == ""
    sys.stdout.write(key)


def test_a_property_has_all_its_examples_with_each_case():
    examples = set()

    @failures.over("kind", ["a", "b"])
    @given(number=st.integers(0, 3))
    def looped(kind: str, number: int) -> None:
        examples.add((kind, number))

    looped()
    assert examples == {(kind, number) for kind in "ab" for number in range(4)}
