"""Tables on the pages are what their programs make now."""

import pytest

from tests import failures
from tests.docs.made import MADE, written

QUICK = [name for name, part in MADE.items() if not part.is_slow]
SLOW = [name for name, part in MADE.items() if part.is_slow]


@failures.over("name", QUICK)
def test_a_page_has_what_its_program_makes(name: str) -> None:
    """`make tables` writes it anew."""
    assert written(name) == MADE[name].make().strip()


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_page_has_what_its_slow_program_makes(name: str) -> None:
    assert written(name) == MADE[name].make().strip()
