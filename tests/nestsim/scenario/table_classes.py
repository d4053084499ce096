"""Every class that a table of a scenario is read into."""

import sys

from estimators.training import ParallelismConfig
from nestsim.scenario.base import AnyTable, Table
from nestsim.scenario.hardware.prices import ListPrice
from nestsim.scenario.hardware.systems import Machines
from nestsim.scenario.load import Scenario
from topologies.settings import Spec

_SHARING: set[AnyTable] = {ParallelismConfig, Scenario, ListPrice, Machines}
"""Records that share settings with a table, or are read of data that ships."""


def table_classes() -> set[AnyTable]:
    """Return the tables of which no other is a subclass."""
    seen: set[AnyTable] = set()
    waiting: list[AnyTable] = [Table, Spec]
    bases: set[AnyTable] = {Table, Spec}
    while waiting:
        base = waiting.pop()
        for child in base.__subclasses__():
            # A dataclass with slots is made twice; its module has the second one.
            if getattr(sys.modules[child.__module__], child.__name__, None) is child:
                bases.add(base)
                seen.add(child)
                waiting.append(child)
    return seen - bases - _SHARING
