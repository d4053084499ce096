"""``python -m nestsim.features.calibration``: refit the constants, for developers."""

import argparse
import datetime as dt
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

import estimators
from estimators.constants import load_constants
from nestsim.document.terminal import print_document
from nestsim.evaluate.uncertainty import Uncertainty, load_uncertainty
from nestsim.features.calibration.bands import (
    memory_deciles,
    read_misses,
    uncertainty_toml,
)
from nestsim.features.calibration.calibrate import (
    Calibration,
    calibrate,
    replace_entries,
)
from nestsim.features.calibration.curves import (
    curve_scores,
    curves_toml,
    extended,
    read_curve_points,
)
from nestsim.features.calibration.document import (
    calibration_document,
    curves_document,
    memory_document,
    transports_document,
)
from nestsim.features.calibration.observations import Residuals, read_observations
from nestsim.features.calibration.parameters import load_fit_spec
from nestsim.features.calibration.transports import fit_transports
from nestsim.features.validation.columns import read_measurements
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.stages import with_notes_of_run


def main() -> None:
    """Fit, hold out, print, and write if asked to."""
    options = _parser().parse_args()
    progress = Console(stderr=True)
    began = time.monotonic()

    def report(line: str) -> None:
        progress.print(f"{time.monotonic() - began:5.0f} s  {line}", highlight=False)

    files = [read_measurements(path) for path in options.measurements]
    rows = [row for file in files for row in file.rows]
    if options.curves:
        points = extended(read_curve_points(options.curves), rows)
        print_document(curves_document(curve_scores(points)), Console())
        if options.write:
            path = Path(estimators.__file__).parent / "collective_curves.toml"
            path.write_text(curves_toml(points), encoding="utf-8")
        return
    spec = load_fit_spec(options.fit)
    base = Predictor(load_constants())
    if {file.kind for file in files} == {"collectives"}:
        # transports.toml is curated: choices of what to fit stand beside the values.
        print_document(transports_document(fit_transports(rows)), Console())
        return
    if {file.kind for file in files} == {"memory"}:
        misses = read_misses(with_notes_of_run(tuple(rows)), base)
        print_document(memory_document(misses), Console())
        if options.write:
            deciles = MappingProxyType(memory_deciles(misses))
            _write_bands(replace(load_uncertainty(), memory=deciles))
        return
    observations = read_observations(rows, spec, base)
    report(f"{len(observations):,} of {len(rows):,} rows can be predicted")
    with Residuals(
        observations, base.constants, predictor=base, workers=options.workers
    ) as evaluate:
        start = (
            [parameter.prior for parameter in spec.parameters]
            if options.from_prior
            else None
        )
        calibration = calibrate(evaluate, spec, start=start, progress=report)
    report(f"{evaluate.evaluations:,} rows were replayed")
    print_document(
        calibration_document(calibration), Console(width=max(Console().width, 150))
    )
    if options.write:
        _write(calibration)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nestsim.features.calibration",
        description="Refit the constants of the cost models to measured step times, "
        "those of interconnects to curves of collectives (printed, not written), or "
        "the bands of memory to measured sizes.",
    )
    parser.add_argument(
        "measurements", nargs="*", type=Path, metavar="MEASUREMENTS.csv"
    )
    parser.add_argument(
        "--curves",
        type=Path,
        metavar="NCCL.csv",
        help="curves of collectives in nodes, to score or to write",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write what was fitted: estimators/constants.toml and "
        "nestsim/evaluate/uncertainty.toml, or estimators/collective_curves.toml",
    )
    parser.add_argument("--fit", type=Path, help="another fit.toml")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument(
        "--from-prior",
        action="store_true",
        help="start from the priors instead of the constants there are",
    )
    return parser


def _write(calibration: Calibration) -> None:
    date = dt.datetime.now(dt.UTC).date().isoformat()
    constants = Path(estimators.__file__).parent / "constants.toml"
    text = constants.read_text(encoding="utf-8")
    constants.write_text(
        replace_entries(text, calibration.entries(date)), encoding="utf-8"
    )
    _write_bands(calibration.uncertainty)


def _write_bands(uncertainty: Uncertainty) -> None:
    path = Path(__file__).parents[2] / "evaluate" / "uncertainty.toml"
    path.write_text(uncertainty_toml(uncertainty), encoding="utf-8")


if __name__ == "__main__":
    main()
