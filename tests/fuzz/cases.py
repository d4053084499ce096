"""Strategies of whole inputs: for each kind of file the commands that read it."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

from hypothesis import strategies as st

from tests.fuzz.case import OUTPUT, Case, Content, Special
from tests.fuzz.documents import LINKS, PROFILE, measurements, rank_times
from tests.fuzz.formats import Tree, dump
from tests.fuzz.mutations import Place, mutated_bytes, mutated_trees
from tests.fuzz.network_files import LOG, network_file_cases
from tests.fuzz.scenarios import CONFIG, SCENARIO, SHIPPED, World, worlds
from tests.planner.rivals.nest_artifact.nest_cases import instances

PLAN = "plan.json"
MEASUREMENTS = "measurements.csv"
INSTANCE = "instance.json"
REPORTS = ("before.json", "after.json")

Results = tuple[Mapping[str, bytes], ...]
"""Files of some folders of results, by name; made by `nestsim run`."""

FAST = ("--no-figures",)
"""What keeps a command that writes a folder from drawing, which takes a second."""

Files = dict[str, Content]


@st.composite
def cases(draw: st.DrawFn, results: Results) -> Case:
    """Draw an input of any kind."""
    kind = draw(st.sampled_from(_WEIGHTED))
    found: Case = draw(KINDS[kind](results))
    return found


@st.composite
def _scenario_cases(
    draw: st.DrawFn, kind: str, uses: tuple[str, ...], within: Place, commands: str
) -> Case:
    """Draw a scenario of which one part may be changed.

    Parameters
    ----------
    draw
        Of hypothesis.
    kind
        What inputs are counted as.
    uses
        Tables and files that the scenario has in any case.
    within
        Where in the scenario changes are made, or the name of another file.
    commands
        Names of the commands to choose from.
    """
    command = draw(st.sampled_from(commands.split()))
    if command == "simulate":
        uses = (*uses, "plan")
    world: World = draw(worlds(uses=uses))
    trees = {SCENARIO: world.document, **world.files}
    target = within[0] if within and within[0] in trees else SCENARIO
    inner = within[1:] if within and within[0] in trees else within
    files, is_mutated = draw(_written(trees, str(target), inner))
    argv = draw(_commands(command))
    return Case(kind=kind, argv=tuple(argv), files=files, is_mutated=is_mutated)


@st.composite
def _written(
    draw: st.DrawFn, trees: Mapping[str, Tree], target: str, within: Place = ()
) -> tuple[Files, bool]:
    """Write files, one of them changed in every second input."""
    how = draw(st.sampled_from(["tree"] * 13 + ["as it is"] * 7 + ["bytes"] * 2))
    changed = dict(trees)
    if how == "tree":
        tree = draw(mutated_trees(trees[target], within))
        broken = target == SCENARIO and not isinstance(tree, dict)
        changed[target] = {"a": tree} if broken else tree
    _bound_work(changed.get(SCENARIO))
    files: Files = {name: dump(name, tree) for name, tree in changed.items()}
    if how == "bytes":
        content = files[target]
        assert isinstance(content, bytes)
        files[target] = draw(mutated_bytes(content))
    return files, how != "as it is"


def _bound_work(scenario: Tree) -> None:
    """Give a search that has no limit a tenth of the usual one: a minute is no hang."""
    search = scenario.setdefault("search", {}) if isinstance(scenario, dict) else None
    if isinstance(search, dict):
        search.setdefault("work_limit", 6_000_000)


@st.composite
def _commands(draw: st.DrawFn, command: str) -> list[str]:
    """Draw the arguments of a command that reads a scenario."""
    argv = [command, SCENARIO, *_ARGUMENTS.get(command, ())]
    if command == "explain":
        argv = ["plan", SCENARIO, "--explain", draw(_explained())]
    elif command == "simulate" and draw(st.integers(0, 24)) == 0:
        argv += [*("-o", OUTPUT), *FAST]
    elif command == "compare":
        argv += ["--planners", draw(st.sampled_from(["nest", "manual,nest", "phaze"]))]
    elif command == "topology" and draw(st.integers(0, 4)) > 0:
        argv.append("--json")
    if "--json" not in argv and draw(st.booleans()):
        argv.append("--json")
    if command != "topology" and draw(st.integers(0, 5)) == 0:
        argv.append("--quiet")
    return argv


_ARGUMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "run": ("-o", OUTPUT, *FAST),
        "sweep": ("--workers", "1", "-o", OUTPUT, *FAST),
        "stress": ("--workers", "1"),
        "jitter": ("--workers", "1", "--runs", "3"),
        "goodput": ("--seeds", "2", "--duration", "2 d"),
        "compare": ("--json",),
        "collectives": ("--json", "-e", "1 MiB"),
        "memory": ("--json",),
    }
)
"""Command -> what it is given in any case: small work, written into one folder."""


@st.composite
def _explained(draw: st.DrawFn) -> str:
    keys = ["tp", "pp", "dp", "cp", "ep", "b", "v", "zero"]
    chosen = draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3, unique=True))
    values = st.sampled_from(["1", "2", "4", "3", "0", "99"])
    pairs = [f"{key}={draw(values)}" for key in chosen]
    if draw(st.integers(0, 4)) == 0:
        pairs.append(f"recompute={draw(st.sampled_from(['none', 'full', 'stage']))}")
    return ",".join(pairs)


def _scenarios(
    kind: str, *uses: str, within: Place = (), commands: str
) -> Callable[[Results], st.SearchStrategy[Case]]:
    """Return the strategy of a kind of scenario."""
    return lambda results: _scenario_cases(kind, uses, within, commands)


@st.composite
def _plan_cases(draw: st.DrawFn, results: Results) -> Case:
    """Draw a plan file beside the scenario that it was made for."""
    made = draw(st.sampled_from(results))
    trees = {PLAN: json.loads(made[PLAN])}
    files, is_mutated = draw(_written(trees, PLAN))
    argv = ["simulate", SCENARIO, "--plan", PLAN]
    argv += ["--json"] if draw(st.booleans()) else []
    files = {SCENARIO: made[SCENARIO], **files}
    return Case(kind="plan file", argv=tuple(argv), files=files, is_mutated=is_mutated)


@st.composite
def _report_cases(draw: st.DrawFn, results: Results) -> Case:
    """Draw two reports to compare, as files or as folders."""
    one, other = (draw(st.sampled_from(results)) for _ in range(2))
    names = REPORTS
    if draw(st.booleans()):
        names = tuple(f"{name.removesuffix('.json')}/result.json" for name in REPORTS)
    trees = {names[0]: json.loads(one["result.json"])}
    within = draw(st.sampled_from([(), ("plan",), ("plan", "stages"), ("simulated",)]))
    files, is_mutated = draw(_written(trees, names[0], within))
    files[names[1]] = other["result.json"]
    argv = ["diff", *(name.removesuffix("/result.json") for name in names)]
    if draw(st.booleans()):
        argv[1:] = argv[:0:-1]
    argv += ["--json"] if draw(st.booleans()) else []
    return Case(kind="report", argv=tuple(argv), files=files, is_mutated=is_mutated)


@st.composite
def _nest_cases(draw: st.DrawFn, results: Results) -> Case:
    """Draw an instance of the NEST artifact."""
    tree = draw(instances(max_nodes=5))
    if draw(st.booleans()):
        sizes = {"num_transformer_layers": 3, "t": 1, "p": 1, "d": 1}
        tree["baselines"] = {"manual": {**sizes, "layer_partition": [3]}}
    files, is_mutated = draw(_written({INSTANCE: tree}, INSTANCE))
    argv = ["plan", "--nest-instance", INSTANCE]
    for option in ("--score", "--json"):
        argv += [option] if draw(st.booleans()) else []
    return Case(kind="NEST", argv=tuple(argv), files=files, is_mutated=is_mutated)


@st.composite
def _measurement_cases(draw: st.DrawFn, results: Results) -> Case:
    """Draw a file of measurements."""
    rows = draw(measurements())
    files, is_mutated = draw(_written({MEASUREMENTS: rows}, MEASUREMENTS))
    forms = ["--json", "--json"] + ["--markdown"] * ("collective" not in rows[0])
    argv = ["validate", MEASUREMENTS, draw(st.sampled_from(forms))]
    return Case(kind="CSV", argv=tuple(argv), files=files, is_mutated=is_mutated)


@st.composite
def _rank_time_cases(draw: st.DrawFn, results: Results) -> Case:
    """Draw compute times of ranks: a file, or a folder with a file for each."""
    trees = draw(rank_times())
    files, is_mutated = draw(_written(trees, draw(st.sampled_from(sorted(trees)))))
    times = next(iter(trees)).partition("/")[0]
    argv = ["jitter-fit", times, *["--json"] * draw(st.integers(0, 1))]
    return Case(kind="rank times", argv=tuple(argv), files=files, is_mutated=is_mutated)


@st.composite
def _option_cases(draw: st.DrawFn, results: Results) -> Case:
    """Draw values of options, on a scenario that is as it should be."""
    made = draw(st.sampled_from(results))
    value = draw(st.sampled_from(_VALUES) | st.text(max_size=8))
    text = value.encode("utf-8", errors="replace").decode().replace("\0", "")
    form = draw(st.sampled_from(_OPTIONS))
    argv = tuple(word.replace("VALUE", text) for word in form.split(" "))
    files = {SCENARIO: made[SCENARIO]}
    return Case(kind="option", argv=argv, files=files, is_mutated=True)


_OPTIONS = (
    f"plan {SCENARIO} --explain VALUE",
    f"plan {SCENARIO} --explain tp=VALUE",
    f"plan {SCENARIO} --explain recompute=VALUE,zero=1",
    f"sweep {SCENARIO} --workers 1 -o {OUTPUT} --set VALUE",
    f"sweep {SCENARIO} --workers 1 -o {OUTPUT} --set training.global_batch_size=VALUE",
    f"sweep {SCENARIO} --workers 1 -o {OUTPUT} --set VALUE=1,2",
    f"sweep {SCENARIO} --workers 1 -o {OUTPUT} --what VALUE",
    f"collectives {SCENARIO} --json -b VALUE -e 1GiB",
    f"collectives {SCENARIO} --json -e VALUE",
    f"collectives {SCENARIO} --json -f VALUE",
    f"memory {SCENARIO} --tp VALUE",
    f"memory {SCENARIO} --recompute VALUE",
    f"jobs {SCENARIO} --ecmp-seeds VALUE",
    f"stress {SCENARIO} --workers 1 --oversubscription VALUE",
    f"stress {SCENARIO} --workers 1 --oversubscription leaf=VALUE",
    f"stress {SCENARIO} --workers 1 --keep VALUE",
    f"stress {SCENARIO} --workers 1 --planners VALUE",
    f"compare {SCENARIO} --json --planners VALUE",
    f"compare {SCENARIO} --json --base VALUE",
    f"compare {SCENARIO} --json --networks VALUE {SCENARIO}",
    f"compare {SCENARIO} --json --equal VALUE",
    f"simulate {SCENARIO} --plan VALUE",
    "simulate VALUE",
    "diff VALUE VALUE",
    "plan --nest-instance VALUE",
    "validate VALUE --json",
)
_VALUES = (
    *("", " ", "0", "1", "-1", "2", "1,2", "1=2", "=", ",", "tp=8,tp=4", "a=b", "1e9"),
    *("nan", "inf", "1e400", "9" * 400, "None", "[[1]]", "{a=1}", '"x"', "[1,2", "..."),
    *("node=1,2", "leaf=0", "nest", "manual,manual", "fixed", "exhaustive", "mcmc"),
    *(
        "1 KiB",
        "8",
        "1PiB",
        "1 s",
        "-8",
        "\x1b[31m",
        "é",
        "\u0661",
        "x" * 100_000,
        "dp=0",
    ),
    *("training.x", "a..b", "model.num_layers", "name", "cluster.network.levels[9].x"),
    *(".", "/", "/dev/null", SCENARIO, "nothing.toml", "~", "-", "--", "\u202e"),
)


@st.composite
def _place_cases(draw: st.DrawFn, results: Results) -> Case:
    """Draw something that is no plain file where a file or a folder is named."""
    made = draw(st.sampled_from(results))
    argv, name = draw(st.sampled_from(_PLACES))
    special = draw(st.sampled_from(_SPECIALS))
    files: Files = {
        SCENARIO: made[SCENARIO],
        PLAN: made[PLAN],
        REPORTS[1]: made["result.json"],
    }
    if name in {LINKS, CONFIG, PROFILE}:
        document = {**SHIPPED["gpt3_1.3b_8_a100.toml"]}
        document["cluster"] = {**document["cluster"]}
        if name == LINKS:
            document["cluster"]["network"] = {"kind": "custom", "path": LINKS}
        elif name == CONFIG:
            document["model"] = {"config": CONFIG}
        else:
            document["cluster"]["profile"] = PROFILE
        files[SCENARIO] = dump(SCENARIO, document)
    files.pop(name, None)
    files[name] = special
    return Case(kind="place", argv=tuple(argv.split(" ")), files=files, is_mutated=True)


_PLACES = (
    (f"plan {SCENARIO}", SCENARIO),
    (f"topology {SCENARIO} --json", LINKS),
    (f"profile-logs {LOG} -o {OUTPUT}", LOG),
    (f"plan {SCENARIO}", CONFIG),
    (f"plan {SCENARIO}", PROFILE),
    (f"simulate {SCENARIO} --plan {PLAN}", PLAN),
    (f"plan --nest-instance {INSTANCE}", INSTANCE),
    (f"validate {MEASUREMENTS} --json", MEASUREMENTS),
    (f"diff {REPORTS[0]} {REPORTS[1]}", REPORTS[0]),
    (f"simulate {SCENARIO} --plan {PLAN} -o {OUTPUT}", OUTPUT),
    (
        f"sweep {SCENARIO} --workers 1 -o {OUTPUT} --set training.global_batch_size=8",
        OUTPUT,
    ),
    (f"compare {SCENARIO} --planners manual -o {OUTPUT}", OUTPUT),
    (f"collectives {SCENARIO} -o {OUTPUT} -e 1KiB", OUTPUT),
    (f"memory {SCENARIO} -o {OUTPUT}", OUTPUT),
)
_SPECIALS = (
    *(Special("folder"), Special("fifo"), Special("link", "/dev/zero")),
    *(
        Special("link", "/dev/null"),
        Special("link", OUTPUT),
        Special("link", "missing"),
    ),
    *(Special("sparse", str(5 * 2**30)), Special("sparse", "1")),
    Special("link", "/proc/self/mem"),
)

_ALL = (
    "plan " * 6
    + "simulate " * 8
    + "explain " * 2
    + "topology collectives collectives memory"
)

KINDS: Mapping[str, Callable[[Results], st.SearchStrategy[Case]]] = MappingProxyType(
    {
        "scenario": _scenarios("scenario", commands=_ALL + " compare"),
        "network": _scenarios(
            "network", within=("cluster", "network"), commands="topology topology plan"
        ),
        "model": _scenarios("model", within=("model",), commands="plan simulate"),
        "search": _scenarios(
            "search", "search", within=("search",), commands="plan plan explain"
        ),
        "[plan]": _scenarios("[plan]", "plan", within=("plan",), commands="simulate"),
        "simulation": _scenarios(
            *("simulation", "plan", "simulation"),
            within=("simulation",),
            commands="simulate",
        ),
        "degraded": _scenarios(
            *("degraded", "degraded", "plan"),
            within=("cluster", "degraded"),
            commands="topology simulate simulate plan",
        ),
        "optical": _scenarios(
            *("optical", "optical", "plan"),
            within=("cluster", "optical"),
            commands="simulate simulate simulate plan",
        ),
        "assert": _scenarios(
            "assert", "assert", "plan", within=("assert",), commands="simulate plan"
        ),
        "sweep": _scenarios(
            "sweep", "sweep", "plan", within=("sweep",), commands="sweep"
        ),
        "stress": _scenarios(
            "stress", "stress", "search", within=("stress",), commands="stress"
        ),
        "jobs": _scenarios(
            *("jobs", "jobs", "shared", "search"),
            within=("jobs",),
            commands="jobs jobs jobs run",
        ),
        "jitter": _scenarios(
            "jitter", "jitter", "plan", within=("jitter",), commands="jitter"
        ),
        "goodput": _scenarios(
            "goodput", "goodput", "plan", within=("goodput",), commands="goodput"
        ),
        "sites": _scenarios(
            "sites", "sites", "plan", within=("sites",), commands="sites"
        ),
        "links": _scenarios(
            "links", "links", within=(LINKS,), commands="topology topology plan"
        ),
        "config": _scenarios(
            "config", "config", within=(CONFIG,), commands="plan simulate topology"
        ),
        "profile": _scenarios(
            "profile", "profile", within=(PROFILE,), commands="plan simulate"
        ),
        "run": _scenarios("run", commands="run"),
        "plan file": _plan_cases,
        "report": _report_cases,
        "NEST": _nest_cases,
        "CSV": _measurement_cases,
        "rank times": _rank_time_cases,
        "network file": lambda results: network_file_cases(),
        "option": _option_cases,
        "place": _place_cases,
    }
)
"""Kind of input -> its strategy."""

_WEIGHTS = {
    "scenario": 30,
    "plan file": 14,
    "NEST": 12,
    "CSV": 14,
    "rank times": 4,
    "links": 12,
    "network file": 12,
    "report": 14,
    "[plan]": 12,
    "config": 10,
    "profile": 6,
    "degraded": 10,
    "optical": 4,
    "model": 6,
    "network": 8,
    "search": 6,
    "simulation": 8,
    "assert": 6,
    "sweep": 5,
    "stress": 4,
    "jobs": 5,
    "jitter": 4,
    "goodput": 4,
    "sites": 4,
    "option": 8,
    "run": 3,
    "place": 4,
}
_WEIGHTED = [kind for kind, weight in _WEIGHTS.items() for _ in range(weight)]
assert _WEIGHTS.keys() == KINDS.keys()
