"""Mutants change what they say they change, and every file has tests near it."""

import ast
from pathlib import Path

from tests.mutants.__main__ import judged, nearest_tests
from tests.mutants.mutating import AREAS, ROOT, Mutant, drawn_mutants, mutants_of

SOURCE = '''
LIMIT = 3
def f(a: "x + y", b):
    """Return a + b."""
    if a < b and not b:
        raise ValueError(f"{a + b}")
    return max(a * 2, b - 1)
'''


def test_operators_calls_and_numbers_of_functions_change() -> None:
    changes = {(m.before, m.after, m.line) for m in mutants_of("a.py", SOURCE)}
    assert changes == {
        ("<", "<=", 5),
        ("and", "or", 5),
        ("max", "min", 7),
        ("*", "/", 7),
        ("2", "(2 + 1)", 7),
        ("-", "+", 7),
        ("1", "(1 + 1)", 7),
    }


def test_each_mutant_is_another_program() -> None:
    program = ast.dump(ast.parse(SOURCE))
    for mutant in mutants_of("a.py", SOURCE):
        assert ast.dump(ast.parse(mutant.applied(SOURCE))) != program


def test_a_seed_draws_the_same_from_each_area() -> None:
    mutants = drawn_mutants(12, seed=7)
    assert mutants == drawn_mutants(12, seed=7) != drawn_mutants(12, seed=8)
    assert len(set(mutants)) == 12
    for place, area in enumerate(AREAS):
        patterns = AREAS[area]
        assert any((ROOT / mutants[place].path) in ROOT.glob(p) for p in patterns)


def test_every_file_of_an_area_has_tests() -> None:
    for patterns in AREAS.values():
        for pattern in patterns:
            for file in ROOT.glob(pattern):
                tests = nearest_tests(file.relative_to(ROOT).as_posix())
                assert tests
                assert all((ROOT / name).exists() for name in tests)


def test_a_mutant_is_killed_where_a_test_fails_and_survives_elsewhere(
    tmp_path: Path,
) -> None:
    text = "def double(x):\n    return x * 2\n"
    (tmp_path / "code.py").write_text(text)
    check = (
        "from code_under_test import double\n\n\ndef test_double():\n    assert {}\n"
    )
    (tmp_path / "code_under_test.py").write_text(text)
    (tmp_path / "test_strict.py").write_text(check.format("double(3) == 6"))
    (tmp_path / "test_lax.py").write_text(check.format("double(3)"))
    place = text.index("*")
    mutant = Mutant("code_under_test.py", 2, place, "*", "/")
    strict = judged(mutant, tmp_path, ["test_strict.py"])
    assert strict.killed_by.endswith("test_strict.py::test_double")
    assert not judged(mutant, tmp_path, ["test_lax.py"]).killed_by
    assert (tmp_path / "code_under_test.py").read_text() == text
