"""Rows of measurements as a fit sees them: a case, what was measured, a weight.

Residuals are the logarithms of predicted over measured times under given constants, on
the path of a prediction. Which constants a row's prediction reads is found by noting
them as they are read, so that only rows that a constant can touch are predicted again
when it changes.
"""

import math
import multiprocessing
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType, TracebackType

import numpy as np

from estimators.constants import Constants
from nestsim.features.calibration.parameters import FitSpec, Parameter
from nestsim.features.validation.case import Case, read_case
from nestsim.features.validation.columns import Row, RowRefusedError
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.results import grouped
from nestsim.features.validation.runner import measured_time
from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A row that can be predicted and has a measured time."""

    case: Case
    """What was run."""

    measured: float
    """Time of a step [s]."""

    group: int
    """Number of its group: rows of one configuration, or of one cell, have the same,
    and are never on both sides of a split."""

    configuration: int
    """Number of its configuration: predictions of equal ones are equal."""

    excluded: str = ""
    """Why nothing is fitted to it; empty if it is fitted to."""

    @property
    def row(self) -> Row:
        """As it was written."""
        return self.case.row


_ASSUMED = "a size that decides the time is an assumption"
"""Reason why nothing is fitted to a row."""


def read_observations(
    rows: Iterable[Row], spec: FitSpec, predictor: Predictor
) -> tuple[Observation, ...]:
    """Return the rows that can be predicted, in their order; others are left out.

    A row that the simulator refuses is found by predicting it, which `predictor`
    keeps.
    """
    cases: list[tuple[Case, float]] = []
    for row in rows:
        try:
            case = predictor.settled(read_case(row))
            predictor.predict(case)
            cases.append((case, measured_time(case, predictor.graph(case)).value))
        except RowRefusedError:
            continue
    configurations = _numbered([case.content for case, _ in cases])
    cells = _numbered([_cell(case.row, spec) for case, _ in cases])
    groups = _joined(configurations, cells)
    return tuple(
        Observation(
            case=case,
            measured=measured,
            group=groups[index],
            configuration=configurations[index],
            excluded=_ASSUMED if case.assumes_layout else spec.exclusion(case.row),
        )
        for index, (case, measured) in enumerate(cases)
    )


def _cell(row: Row, spec: FitSpec) -> Hashable:
    columns = spec.cells.get(row.source)
    if columns is None:
        return row.row_id
    return (row.source, *(row.words(column) for column in columns))


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _joined(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return class numbers, the smallest classes with rows equal in either in one."""
    parent = list(range(len(first)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    for keys in (first, second):
        seen: dict[int, int] = {}
        for index, key in enumerate(keys):
            other = root(seen.setdefault(key, index))
            this = root(index)
            parent[max(this, other)] = min(this, other)
    return _numbered([root(index) for index in range(len(first))])


def row_weights(observations: Sequence[Observation], chosen: IntArray) -> FloatArray:
    """Return how much each of the chosen rows counts.

    A source with ``n`` configurations counts as ``sqrt(n)`` rows, however many of them
    were chosen, each chosen configuration alike: rows of one source share its habits,
    and are not ``n`` independent witnesses of a constant.
    """
    usable = grouped(
        (observation.row.source, observation.configuration)
        for observation in observations
        if not observation.excluded
    )
    keyed = grouped(
        (observations[index].row.source, observations[index].configuration)
        for index in chosen
    )
    weight = {
        source: math.sqrt(len(set(usable.get(source, configurations))))
        / len(set(configurations))
        for source, configurations in keyed.items()
    }
    repeats = Counter(
        (source, configuration)
        for source, configurations in keyed.items()
        for configuration in configurations
    )
    pairs = [
        (observations[index].row.source, observations[index].configuration)
        for index in chosen
    ]
    return np.array([weight[pair[0]] / repeats[pair] for pair in pairs])


def fitted_rows(observations: Sequence[Observation], spec: FitSpec) -> IntArray:
    """Return the indexes of the rows that constants are fitted to.

    Of a source in ``spec.samples`` only so many: one of each group in turn, in the
    order of the file.
    """
    usable = [
        index
        for index, observation in enumerate(observations)
        if not observation.excluded
    ]
    by_source = grouped((observations[index].row.source, index) for index in usable)
    chosen: list[int] = []
    for source, rows in by_source.items():
        limit = spec.samples.get(source, len(rows))
        chosen += rows if limit >= len(rows) else _spread(observations, rows, limit)
    return np.array(sorted(chosen), dtype=np.int64)


def _spread(
    observations: Sequence[Observation], rows: Sequence[int], limit: int
) -> list[int]:
    """Take rows of all groups in turn, evenly spaced within each."""
    groups = list(grouped((observations[i].group, i) for i in rows).values())
    share, rest = divmod(limit, len(groups))
    chosen: list[int] = []
    for number, group in enumerate(groups):
        count = min(share + (number < rest), len(group))
        chosen += [group[(2 * k + 1) * len(group) // (2 * count)] for k in range(count)]
    return chosen


STEP = 0.02
"""Step of a finite difference, in the logarithm of a constant."""

_CHUNKS_PER_WORKER = 4
"""Tasks that each process gets of a list of rows."""

Task = tuple[Mapping[str, float], IntArray]
"""Constants that differ from the base, and indexes of the rows to predict."""


class _Noting(Mapping[str, float]):
    """Constants that note which of them are read."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.read.add(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Residuals:
    """Evaluates rows under constants, in this process or in several.

    Parameters
    ----------
    observations
        The rows.
    constants
        Those that are not varied.
    predictor
        Traced models and networks to share.
    workers
        Processes; with 1, all is done in this one. The results are the same.
    """

    def __init__(
        self,
        observations: Sequence[Observation],
        constants: Constants,
        *,
        predictor: Predictor | None = None,
        workers: int = 1,
    ) -> None:
        self.observations = tuple(observations)
        self.constants = constants
        self.evaluations = 0
        """Rows that were predicted so far."""
        self._workers = workers
        self._predictor = Predictor() if predictor is None else predictor
        self._cases = tuple(observation.case for observation in self.observations)
        self._measured = np.log(
            [observation.measured for observation in self.observations]
        )
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Residuals":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def touched(
        self, parameters: Sequence[Parameter], changes: Mapping[str, float]
    ) -> tuple[IntArray, ...]:
        """Return the indexes of the rows that read each parameter.

        Parameters
        ----------
        parameters
            What is varied.
        changes
            Constants that differ from the base, as all parameters are in a fit.
        """
        noting = _Noting({**self.constants.values, **changes})
        constants = Constants(values=noting)
        predictor = self._predictor.with_constants(constants)
        names: dict[object, frozenset[str]] = {}
        read: list[frozenset[str]] = []
        for case in self._cases:
            key = (case.model, case.training, case.accelerator.name, case.software)
            noting.read = set()
            predictor.predict(case)
            # What is kept for a job is read when its first row is predicted; what is
            # kept for longer, by whoever asks first.
            constants.accelerator(case.accelerator.constants_name, case.software.name)
            constants.software(case.software.name)
            names[key] = names.get(key, frozenset()) | noting.read
            read.append(names[key])
        return tuple(
            np.array(
                [
                    index
                    for index, names_read in enumerate(read)
                    if not names_read.isdisjoint((parameter.name, *parameter.tied))
                ],
                dtype=np.int64,
            )
            for parameter in parameters
        )

    def residuals(self, changes: Mapping[str, float], rows: IntArray) -> FloatArray:
        """Return ``log(predicted / measured)`` of some rows.

        Parameters
        ----------
        changes
            Dotted name -> value, of constants that differ from the base.
        rows
            Indexes of observations.
        """
        parts = np.array_split(rows, self._workers * _CHUNKS_PER_WORKER)
        tasks = [(changes, part) for part in parts if len(part)]
        predicted = self._run(tasks)
        times = np.concatenate(predicted) if predicted else np.zeros(0)
        return np.asarray(np.log(times) - self._measured[rows])

    def jacobian(
        self,
        parameters: Sequence[Parameter],
        logarithms: FloatArray,
        residuals: FloatArray,
        rows: IntArray,
        touched: Sequence[IntArray],
    ) -> FloatArray:
        """Return the derivatives of residuals by the parameters' logarithms.

        Forward differences; towards the inside where a parameter is at its upper end.
        Those in seconds are those of the planner's timeline, at a seventh of the cost
        of a replay, from which it differs by what contends for links.

        Parameters
        ----------
        parameters, logarithms
            What is varied, and where.
        residuals
            There, of ``rows``.
        rows
            Indexes of observations.
        touched
            What `touched` returned.

        Returns
        -------
        FloatArray
            Shape ``(len(rows), len(parameters))``.
        """
        place = np.full(len(self._cases), -1)
        place[rows] = np.arange(len(rows))
        base = constants_of(parameters, logarithms)
        times = np.exp(residuals + self._measured[rows])
        parts = np.array_split(rows, self._workers * _CHUNKS_PER_WORKER)
        before = np.concatenate(
            self._run([(base, part) for part in parts if len(part)], planned=True)
        )
        tasks, steps = [], []
        for parameter, value, places in zip(
            parameters, logarithms, touched, strict=True
        ):
            ahead = value + STEP <= np.log(parameter.upper)
            steps.append(STEP if ahead else -STEP)
            changes = {**base, **parameter.values(float(value) + steps[-1])}
            tasks.append((changes, places[place[places] >= 0]))
        result = np.zeros((len(rows), len(parameters)))
        # The longest first: the last to start decides how long the others wait.
        order = sorted(range(len(tasks)), key=lambda task: -len(tasks[task][1]))
        times_after = self._run([tasks[task] for task in order], planned=True)
        for task, after in zip(order, times_after, strict=True):
            places = place[tasks[task][1]]
            moved = np.log((times[places] + after - before[places]) / times[places])
            result[places, task] = moved / steps[task]
        return result

    def _run(self, tasks: Sequence[Task], *, planned: bool = False) -> list[FloatArray]:
        """Return the times of each task's rows, replayed or planned [s]."""
        self.evaluations += 0 if planned else sum(len(rows) for _, rows in tasks)
        if self._workers == 1:
            shared = (self._predictor, self._cases, self.constants)
            return [_times(*shared, task, planned) for task in tasks]
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._workers,
                multiprocessing.get_context("spawn"),
                initializer=_Worker.start,
                initargs=(
                    [case.row for case in self._cases],
                    dict(self.constants.values),
                ),
            )
        plain = [((dict(changes), rows), planned) for changes, rows in tasks]
        return list(self._pool.map(_Worker.run, plain))


class _Worker:
    """What another process keeps between its tasks."""

    cases: tuple[Case, ...] = ()
    """Cases of the rows, in their order."""

    constants: Constants
    """Constants that are not varied."""

    predictor: Predictor
    """Predictor with its traced models and networks."""

    @classmethod
    def start(cls, rows: Sequence[Row], values: Mapping[str, float]) -> None:
        cls.constants = Constants(values=MappingProxyType(dict(values)))
        cls.predictor = Predictor(cls.constants)
        cls.cases = tuple(cls.predictor.settled(read_case(row)) for row in rows)

    @classmethod
    def run(cls, task: tuple[Task, bool]) -> FloatArray:
        return _times(cls.predictor, cls.cases, cls.constants, *task)


def constants_of(
    parameters: Sequence[Parameter], logarithms: FloatArray
) -> dict[str, float]:
    """Return the constants that parameters stand for, by dotted name."""
    return {
        name: value
        for parameter, logarithm in zip(parameters, logarithms, strict=True)
        for name, value in parameter.values(float(logarithm)).items()
    }


def _times(
    predictor: Predictor,
    cases: Sequence[Case],
    constants: Constants,
    task: Task,
    planned: bool,
) -> FloatArray:
    changes, rows = task
    changed = predictor.with_constants(constants.replaced(changes))
    return np.array(
        [
            changed.planned_time(cases[index])
            if planned
            else changed.predict(cases[index]).iteration_time
            for index in rows
        ],
        dtype=np.float64,
    )
