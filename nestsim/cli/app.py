"""The command line as a whole, made of the descriptions of its commands.

Only typer is imported here; each command imports what it needs when it runs, so that
``nestsim --help`` and shell completion answer at once.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from nestsim.registry import COMMANDS, KINDS, Command, Option

_WHOLE = 1_000
"""Letters of a command in the list of all: no sentence is cut."""


def _without_types(parameters: list[Any]) -> list[Any]:
    """Return parameters that help shows without the names of Python's types."""
    for parameter in parameters:
        if isinstance(parameter, TyperArgument):
            vars(parameter)["display_type_rich"] = lambda ctx: None  # noqa: ARG005
        elif parameter.is_flag:
            parameter.metavar = ""
    return parameters


class _Commands(TyperGroup):
    """All commands together."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with the whole first sentence of each."""
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, self.commands[name].get_short_help_str(_WHOLE))
                    for name in names
                ]
            )


app = typer.Typer(
    name="nestsim",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes and colours would take half of the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"nestsim {version('nestsim')}")
        raise typer.Exit


@app.callback()
def nestsim(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Plan, replay and report distributed training of large models.

    On this cluster, how should this model be split and placed, and what throughput
    and memory will it really get? A planner proposes placements; a simulator replays
    the best of them over the cluster's real links; only a plan that the replay has
    confirmed is reported.

    What is computed stands in a scenario, a TOML file. Results go to standard output,
    everything else to standard error.

    Exit status: 0 done (and confirmed), 1 nothing fits, nothing is confirmed or an
    assertion of the scenario does not hold, 2 the input is wrong or results cannot be
    written, 130 interrupted, 143 terminated.

    Example: nestsim run scenarios/llama2_7b_64_h100.toml
    """


def _plain(words: str) -> str:
    """Return words without the marks of code that pages show."""
    return words.replace("`", "")


def _function(command: Command) -> Callable[..., None]:
    """Return the function that typer reads a command from."""

    def run(**values: Any) -> None:
        from nestsim.cli.runner import run_command

        typed = {
            name: value.value if isinstance(value, Enum) else value
            for name, value in values.items()
        }
        raise typer.Exit(run_command(command, typed))

    parameters = [_parameter(option) for option in command.options]
    hints = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__, run.__doc__ = hints, _plain(command.words)
    return run


def _parameter(option: Option) -> inspect.Parameter:
    """Return an option as a parameter whose annotation typer reads."""
    words = [(word, word) for word in option.choices]
    value: Any = Enum("Choice", words) if words else KINDS[option.kind]
    kind: Any = list[value] if option.is_list else value
    is_optional = option.default is None and option.kind != "switch"
    text: Any = {
        "help": _plain(option.help),
        "show_default": option.default is not None,
    }
    if option.is_argument:
        info: Any = typer.Argument(metavar=option.name, **text)
    else:
        names = filter(None, (option.name, option.short))
        info = typer.Option(
            *names, metavar=option.metavar or None, min=option.least, **text
        )
    default = False if option.kind == "switch" else option.default
    return inspect.Parameter(
        option.target,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.required else default,
        annotation=Annotated[kind | None if is_optional else kind, info],
    )


def _reader(command: Command) -> type[TyperCommand]:
    """Return the class that reads the words of a command line."""
    several = [option.name for option in command.options if option.takes_words]

    class Reader(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            for option, now in command.moved.items():
                if any(word.partition("=")[0] == option for word in args):
                    _refuse_moved(option, now)
            return super().parse_args(ctx, list(repeated(args, several)))

        def get_params(self, ctx: Any) -> list[Any]:
            return _without_types(super().get_params(ctx))

    return Reader


def _refuse_moved(option: str, now: str) -> None:
    from topologies.errors import InputError

    raise InputError("is a command of its own now", where=option, expected=now)


def repeated(args: Sequence[str], several: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line with the option before each of its values.

    Examples
    --------
    >>> list(repeated(["job", "--networks", "a", "b", "-q"], ["--networks"]))
    ['job', '--networks', 'a', '--networks', 'b', '-q']
    """
    option, is_first = "", False
    for word in args:
        if word.startswith("-") and word != "-":
            option, is_first = (word, True) if word in several else ("", False)
            yield word
            continue
        if option and not is_first:
            yield option
        is_first = False
        yield word


for _command in COMMANDS:
    app.command(_command.name, cls=_reader(_command))(_function(_command))
