"""The features whose results stand in folders, each by the file that only it writes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from nestsim.document.parts import Document
from nestsim.features.compare.document import comparison_document
from nestsim.features.compare.networks_document import networks_document
from nestsim.features.goodput.document import goodput_document
from nestsim.features.jitter.document import jitter_document
from nestsim.features.jobs.document import jobs_document
from nestsim.features.stress.document import stress_document
from nestsim.features.sweep.document import sweep_document


@dataclass(frozen=True, slots=True)
class StoredFeature:
    """How a feature's folder of results is read."""

    record: str
    """File that holds all that the document says."""

    document: Callable[[Any], Document]
    """What makes the document of that file's content."""


def _compared(data: Any) -> Document:
    """Return the document of a comparison, of planners or of networks."""
    return networks_document(data) if "networks" in data else comparison_document(data)


STORED: Mapping[str, StoredFeature] = MappingProxyType(
    {
        "comparison.csv": StoredFeature("comparison.json", _compared),
        "jobs.csv": StoredFeature("jobs.json", jobs_document),
        "goodput.csv": StoredFeature("goodput.json", goodput_document),
        "stress.csv": StoredFeature("stress.json", stress_document),
        "jitter.csv": StoredFeature("jitter.json", jitter_document),
        "points.csv": StoredFeature("result.json", sweep_document),
    }
)
"""File that only this kind of results has -> the feature that wrote it."""
