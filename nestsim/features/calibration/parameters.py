"""What is fitted to which rows, as ``fit.toml`` has it."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli

from nestsim.features.validation.columns import Row
from topologies.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant that is fitted, in its logarithm."""

    name: str
    """Dotted name in `estimators.constants`."""

    prior: float
    """Value where no row says anything about the constant: from a datasheet or another
    device, not from a fit."""

    sigma: float
    """Standard deviation of the prior, in the logarithm."""

    lower: float
    """Least value."""

    upper: float
    """Largest value."""

    only_sources: tuple[str, ...] = ()
    """Sources that the constant may be fitted to, empty for all: to them first,
    together with all other constants, and kept when the rest is fitted to all rows."""

    tied: tuple[str, ...] = ()
    """Names of further constants that have the same value."""

    def values(self, logarithm: float) -> dict[str, float]:
        """Return the constants that it stands for, by dotted name."""
        value = math.exp(logarithm)
        return dict.fromkeys((self.name, *self.tied), value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Rows that no constant may be fitted to."""

    reason: str
    """Reason why nothing is fitted to the rows."""

    columns: Mapping[str, str]
    """Column -> regular expression of its whole text; all of them must match."""

    def matches(self, row: Row) -> bool:
        """Return whether a row is one of them."""
        return all(
            re.fullmatch(pattern, row.words(column), re.IGNORECASE)
            for column, pattern in self.columns.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSpec:
    """What is fitted to which rows."""

    parameters: tuple[Parameter, ...]
    """Constants that are fitted, in the order of the file."""

    exclusions: tuple[Exclusion, ...]
    """Rows that are predicted and reported, but not fitted to."""

    row_error: float
    """Error of a row, in the logarithm, from which on it counts less than its
    square."""

    cells: Mapping[str, tuple[str, ...]]
    """Source -> columns; rows that agree in them stay in one fold."""

    samples: Mapping[str, int]
    """Source -> number of rows that a fit takes of it; all, where it says nothing."""

    releases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of software -> newest releases of rows that do not say theirs."""

    def exclusion(self, row: Row) -> str:
        """Return why a row is not fitted to, empty if it is."""
        for exclusion in self.exclusions:
            if exclusion.matches(row):
                return exclusion.reason
        return ""


def load_fit_spec(path: Path | None = None) -> FitSpec:
    """Read what is fitted; what is shipped if no file is named.

    Raises
    ------
    InputError
        If the file cannot be read or a table in it is not understood.
    """
    where = "fit.toml" if path is None else str(path)
    try:
        text = (
            files("nestsim.features.calibration")
            .joinpath("fit.toml")
            .read_text("utf-8")
            if path is None
            else path.read_text(encoding="utf-8")
        )
        return parse_fit_spec(tomli.loads(text))
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise InputError(problem, where=where) from None
    except tomli.TOMLDecodeError as error:
        raise InputError(f"is not TOML: {error}", where=where) from None
    except InputError as error:
        raise error.at(where, ": ") from None


def parse_fit_spec(tables: Mapping[str, Any]) -> FitSpec:
    """Return what the tables of a file say."""
    return FitSpec(
        parameters=tuple(
            _parameter(name, entry)
            for name, entry in tables.get("constants", {}).items()
        ),
        exclusions=tuple(_exclusion(entry) for entry in tables.get("excluded", ())),
        row_error=float(tables["row_error"]),
        cells={name: tuple(cell) for name, cell in tables.get("cells", {}).items()},
        samples=dict(tables.get("samples", {})),
        releases={
            name: (str(entry["newest"]),)
            for name, entry in tables.get("releases", {}).items()
        },
    )


def _parameter(name: str, entry: Mapping[str, Any]) -> Parameter:
    known = {field.name for field in fields(Parameter)} - {"name"}
    strange = [key for key in entry if key not in known]
    missing = [key for key in ("prior", "sigma", "lower", "upper") if key not in entry]
    if strange or missing:
        raise InputError(
            "not what a constant is described by",
            where=f"constants.{name}",
            got=", ".join(entry),
            expected=f"prior, sigma, lower, upper; also {', '.join(_OPTIONAL)}",
        )
    prior, sigma, lower, upper = _numbers(entry)
    if not (0 < lower <= prior <= upper and lower < upper and sigma > 0):
        raise InputError(
            "not in order",
            where=f"constants.{name}",
            got=f"prior {prior}, sigma {sigma}, lower {lower}, upper {upper}",
            expected="0 < lower <= prior <= upper, lower < upper, and sigma > 0",
        )
    return Parameter(
        name=name,
        prior=prior,
        sigma=sigma,
        lower=lower,
        upper=upper,
        only_sources=tuple(entry.get("only_sources", ())),
        tied=tuple(entry.get("tied", ())),
    )


_OPTIONAL = ("only_sources", "tied")
"""Keys that a constant's table may leave out."""


def _numbers(entry: Mapping[str, Any]) -> Sequence[float]:
    return [float(entry[key]) for key in ("prior", "sigma", "lower", "upper")]


def _exclusion(entry: Mapping[str, str]) -> Exclusion:
    columns = {key: value for key, value in entry.items() if key != "reason"}
    if not columns or not entry.get("reason"):
        raise InputError(
            "says nothing",
            where="excluded",
            got=str(dict(entry)),
            expected="columns with the text of their rows, and a reason",
        )
    return Exclusion(reason=entry["reason"], columns=columns)
