"""Options of Megatron-LM: their table, and what a command gives of them.

Options are looked up, turned into numbers and ticked off: whoever reads an option ticks
it off; what nobody reads is told in the end. What takes several options for one
setting, or one under a condition, is the part ``composed`` of the table: written in
`settings`, read in `composed`.

Two of them have small languages. Lists such as ``([0]*3+[1]*58)`` say which blocks have
experts or windows (``moe_freq_type`` of ``megatron/training/arguments.py``). Layouts
such as ``Et*3|(tt|)*29m|L`` say what each virtual stage holds: ``E`` the embedding,
``t`` a block, ``m`` a layer of multi-token prediction, ``L`` the loss
(``PipelineParallelLayerLayout`` of
``megatron/core/transformer/pipeline_parallel_layer_layout.py``). Nothing is executed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from estimators.models.limits import MAX_LAYERS
from nestsim.launch.carried import stored_words
from nestsim.launch.read import OptionEffects
from nestsim.launch.shell.marks import known_word, readable
from nestsim.scenario.errors import nearest, one_of
from planner.frameworks.options import LaunchOption, option_table
from topologies.errors import InputError
from topologies.input_file import Value

FORMAT = "megatron"
"""Name of the format that the options are of."""

TABLE = option_table("megatron")
"""All of them."""

COMPOSED = frozenset(option.name for option in TABLE.part("composed"))
"""Options that are settings together with others, or under a condition."""

BY_NAME: Mapping[str, LaunchOption] = {
    name: option
    for option in TABLE.options.values()
    if option.part != "composed"
    for name in (option.name, *option.older)
}
"""Options that are one setting each by their names, older ones included."""

READ = BY_NAME.keys() | COMPOSED
"""Options that a setting is read from."""

TOKENS = frozenset(
    {
        *("tokenizer-type", "tokenizer-model", "vocab-size", "padded-vocab-size"),
        *("pad-vocab-size-to", "make-vocab-size-divisible-by"),
    }
)
"""Options that say how large the vocabulary is, together."""

FLASH = tuple(name for name in TABLE.options if name.startswith("use-flash-attn"))
"""Options of older versions that ask for FlashAttention."""

USUAL_ORDER: str = TABLE.facts["order"]
"""Order of ranks by default."""

PP_INSIDE_ORDER: str = TABLE.facts["pp_inside_order"]
"""Order of ranks with ``--use-tp-pp-dp-mapping``."""

SCRIPTS: Mapping[str, str] = TABLE.facts["programs"]
"""Family -> program of Megatron-LM; all others have `GPT_SCRIPT`."""

GPT_SCRIPT: str = TABLE.facts["program"]

_LONGEST_NUMBER = 18


@dataclass(slots=True)
class GivenOptions:
    """The options of one command, and what is assumed on the way."""

    values: Mapping[str, tuple[str, ...]]
    """Option without its dashes -> what stands behind it."""

    assumptions: list[str] = field(default_factory=list)
    """What was assumed, a sentence each."""

    called: Mapping[str, str] = field(default_factory=dict)
    """Option -> its name in a file that calls it otherwise; empty for a command."""

    ticked: set[str] = field(default_factory=set)
    """Options that somebody read."""

    def __contains__(self, name: str) -> bool:
        """Whether an option is given."""
        self.ticked.add(name)
        return name in self.values

    def given_words(self, name: str) -> tuple[str, ...] | None:
        """Return the words behind an option as they are; None if it is not given."""
        self.ticked.add(name)
        return self.values.get(name)

    def assume(self, sentence: str) -> None:
        """Note what is taken, once."""
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def any_of(self, *names: str) -> bool:
        """Whether one of some options is given."""
        return bool([name for name in names if name in self])

    def word(self, name: str, default: str = "") -> str:
        """Return the one word behind an option.

        Raises
        ------
        InputError
            If there is none, or more than one, or a variable that nothing sets.
        """
        values = self.given_words(name)
        if values is None:
            return default
        if len(values) != 1:
            raise Value(" ".join(values) or "none", f"--{name}").error(
                "takes one value", "one"
            )
        return known_word(values[0], f"--{name}")

    def words(self, name: str) -> tuple[str, ...]:
        """Return the words behind an option."""
        return tuple(
            known_word(word, f"--{name}") for word in self.given_words(name) or ()
        )

    def choice(self, name: str, words: Mapping[str, Any], default: Any) -> Any:
        """Return what the word behind an option stands for.

        Raises
        ------
        InputError
            If it stands for nothing.
        """
        word = self.word(name)
        if not word:
            return default
        if word not in words:
            raise InputError(
                "is not one of the values that are known",
                where=f"--{name}",
                got=word,
                expected=one_of(list(words)),
                hint=nearest(word, list(words)),
            )
        return words[word]

    def meaning(self, name: str, default: Any) -> Any:
        """Return the value of the setting that the word behind an option means."""
        option = TABLE.options[name]
        words = option.words or {word: word for word in option.choices}
        return self.choice(name, words, default)

    def whole(self, name: str) -> int | None:
        """Return the whole number behind an option; None if it is not given.

        Raises
        ------
        InputError
            If it is no whole number.
        """
        word = self.word(name)
        if not word:
            return None
        return self.whole_number(name, word)

    @staticmethod
    def whole_number(name: str, word: str) -> int:
        """Return a whole number of at least 0, as Python's ``int`` reads it."""
        plain = word.replace("_", "")
        if not plain.isascii() or not plain.isdecimal() or len(plain) > _LONGEST_NUMBER:
            raise Value(word, f"--{name}").error("is no whole number", "e.g. 8")
        return int(plain)

    def real(self, name: str) -> float | None:
        """Return the number behind an option; None if it is not given.

        Raises
        ------
        InputError
            If it is no number.
        """
        word = self.word(name)
        if not word:
            return None
        try:
            return float(word)
        except ValueError:
            raise Value(word, f"--{name}").error("is no number", "e.g. 0.1") from None

    def flag(self, name: str) -> bool:
        """Whether a flag is given.

        Raises
        ------
        InputError
            If something stands behind it.
        """
        if self.given_words(name):
            raise Value(readable(" ".join(self.values[name])), f"--{name}").error(
                "takes no value", f"--{name} alone"
            )
        return name in self.values

    def setting(self, option: LaunchOption) -> object:
        """Return what an option says of its setting, or Megatron-LM's default."""
        names = [name for name in (option.name, *option.older) if name in self]
        if not names:
            return option.usual
        name = names[0]
        if option.is_flag:
            return option.words[""] if self.flag(name) else option.default
        if option.words:
            return self.choice(name, option.words, option.usual)
        if isinstance(option.default, float):
            return self.real(name)
        return self.whole(name)

    def part(self, name: str) -> dict[str, object]:
        """Return the settings of a part of the table that are known, by name."""
        values = {option.key: self.setting(option) for option in TABLE.part(name)}
        return {name: value for name, value in values.items() if value is not None}

    def check(self) -> None:
        """Note what is taken instead of options; refuse those that are not known.

        Raises
        ------
        InputError
            If one changes what is trained in a way that is not modelled, or is none of
            Megatron-LM and could.
        """
        for name, values in self.values.items():
            if name in TABLE.refused:
                raise Value(" ".join(values)[:100] or None, f"--{name}").error(
                    "is not read", TABLE.refused[name]
                )
            if name in TABLE.assumed:
                usual, taken = TABLE.assumed[name]
                if values != (usual,):
                    self.assume(f"--{name}: {taken}")
            elif not is_known(name):
                raise InputError(
                    "is no option of Megatron-LM that is known, and may change the "
                    "plan",
                    where=f"--{name}",
                    expected="an option of Megatron-LM, or to be left out",
                    hint=nearest(name, sorted(TABLE.names)),
                )

    def kept(self) -> dict[str, Any]:
        """Return the options that no setting holds, as a scenario has them."""
        held = (READ - TABLE.finer) & self.ticked
        return {
            name: stored_words(words)
            for name, words in self.values.items()
            if name not in held
        }

    def effects(self) -> OptionEffects:
        """Return what became of each option, after all were read."""
        called = self.called or {name: f"--{name}" for name in self.values}
        begun = {sentence.partition(":")[0] for sentence in self.assumptions}
        return OptionEffects.of(
            [called[name] for name in self.values if name in called],
            read=[called[name] for name in self.ticked if name in called],
            assumed=[called[name] for name in called if f"--{name}" in begun],
        )


def is_known(name: str) -> bool:
    """Whether an option is one of the table, or makes no difference by its name."""
    return name in TABLE.names or name in TABLE.silent or TABLE.is_harmless(name)


_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d{1,5}))?")
_REPEATED = re.compile(r"(.)\*(\d{1,5})")
_MOST_LETTERS = 4 * MAX_LAYERS
_MOST_LENGTH = 20_000
_LIST_EXAMPLE = 'a number, or a list such as "([0]*3+[1]*58)"'
_LAYOUT_EXAMPLE = 'letters E, t, m and L with | between stages, "Ettt|(tt|)*29m|L"'


def read_list(text: str, where: str) -> int | list[int]:
    """Return the number, or the list, that a text stands for.

    Raises
    ------
    InputError
        If it is neither.
    """
    plain = re.sub(r"\s", "", text)
    if plain.isdecimal() and len(plain) < 10:
        return int(plain)
    marks, end = _sum(plain, 0, where, 0)
    if end != len(plain):
        raise _no_list(text, where)
    return marks


def _sum(text: str, start: int, where: str, depth: int) -> tuple[list[int], int]:
    """Read terms joined by plus signs, from a position on."""
    whole, position = _term(text, start, where, depth)
    while text[position : position + 1] == "+":
        more, position = _term(text, position + 1, where, depth)
        whole = whole + more
        if len(whole) > _MOST_LETTERS:
            raise _no_list(text, where)
    return whole, position


def _term(text: str, start: int, where: str, depth: int) -> tuple[list[int], int]:
    """Read a list or a sum in parentheses, and how often it is repeated."""
    if depth > 16:
        raise _no_list(text, where)
    opening = text[start : start + 1]
    if opening == "(":
        part, position = _sum(text, start + 1, where, depth + 1)
        if text[position : position + 1] != ")":
            raise _no_list(text, where)
        position += 1
    else:
        listed = re.compile(r"\[(\d(?:,\d)*,?)\]").match(text, start)
        if listed is None:
            raise _no_list(text, where)
        part = [int(digit) for digit in listed[1].strip(",").split(",")]
        position = listed.end()
    while (times := re.compile(r"\*(\d{1,5})").match(text, position)) is not None:
        if len(part) * int(times[1]) > _MOST_LETTERS:
            raise _no_list(text, where)
        part, position = part * int(times[1]), times.end()
    return part, position


def _no_list(text: str, where: str) -> InputError:
    return Value(text, where).error("is no list of blocks", _LIST_EXAMPLE)


def write_list(marks: Sequence[int]) -> str:
    """Write a list of 0 and 1, equal neighbours together.

    Examples
    --------
    >>> write_list([0, 0, 0, 1, 1])
    '[0]*3+[1]*2'
    """
    runs = [(mark, len(list(group))) for mark, group in groupby(marks)]
    return "+".join(f"[{mark}]*{length}" for mark, length in runs)


def hybrid_letters(num_layers: int, attention: float, mlp: float) -> str:
    """Return the letters of a hybrid of Mamba-2 that is given by its shares.

    Attention is spread evenly with Mamba-2 at both ends; feed-forward layers evenly
    over what is left, so that they come late (``megatron/core/ssm/
    mamba_hybrid_layer_allocation.py``).

    Parameters
    ----------
    num_layers
        Blocks.
    attention, mlp
        Shares of attention and of feed-forward layers.

    Examples
    --------
    >>> hybrid_letters(9, 0.12, 0.5)
    'M-M-*M-M-'
    """
    letters = ["M"] * num_layers
    count = round(num_layers * attention)
    for index in _spaced(range(num_layers), (num_layers - count) / (count + 1)):
        letters[index] = "*"
    free = [index for index, letter in enumerate(letters) if letter == "M"]
    count = round(num_layers * mlp)
    if count:
        for index in _spaced(free, (len(free) - count) / count):
            letters[index] = "-"
    return "".join(letters)


def _spaced(places: Sequence[int], between: float) -> Iterator[int]:
    """Yield places that have as many others between them on average."""
    left = between
    for place in places:
        if left < 0.5:
            yield place
            left += between
        else:
            left -= 1.0


def write_layout(blocks: Sequence[int], num_mtp: int = 0) -> str:
    """Write the layout of virtual stages that hold numbers of blocks.

    Parameters
    ----------
    blocks
        Of each virtual stage, in the order of the chain.
    num_mtp
        Layers of multi-token prediction, which stand with the loss.

    Examples
    --------
    >>> write_layout([1, 2, 2, 2, 0], 1)
    'Et|(tt|)*3mL'
    """
    if len(blocks) == 1:
        return "E" + "t" * blocks[0] + "m" * num_mtp + "L"
    parts = ["E" + _letters(blocks[0]) + "|"]
    for count, group in groupby(blocks[1:-1]):
        times = len(list(group))
        part = _letters(count) + "|"
        parts.append(f"({part})*{times}" if times > 1 else part)
    return "".join(parts) + _letters(blocks[-1]) + "m" * num_mtp + "L"


def _letters(count: int) -> str:
    """Write a number of blocks; short ones letter by letter, as people do."""
    return "t" * count if count < 5 else f"t*{count}"


def read_layout(text: str, num_stages: int) -> tuple[tuple[int, ...], int]:
    """Return the blocks of each virtual stage of a layout, and its layers of MTP.

    Parameters
    ----------
    text
        The layout.
    num_stages
        Pipeline stages.

    Raises
    ------
    InputError
        If it is no layout, or one of another number of stages; or if layers of
        multi-token prediction do not stand with the loss.
    """
    letters = _unrolled(text)
    parts = letters.split("|")
    whole = letters.replace("|", "")
    if set(whole) - set("EtmL") or not re.fullmatch(r"Et*m*L", whole):
        raise _no_layout(text, _LAYOUT_EXAMPLE)
    if num_stages < 1 or len(parts) % num_stages:
        raise _no_layout(text, f"a multiple of {num_stages} parts, not {len(parts)}")
    if any("m" in part for part in parts[:-1]):
        raise Value(text, "--pipeline-model-parallel-layout").error(
            "has multi-token prediction elsewhere than with the loss",
            'its layers in the last part: ".. |mL"',
        )
    if any("E" in part for part in parts[1:]) or "L" in "".join(parts[:-1]):
        raise _no_layout(text, "E in the first part and L in the last one")
    return tuple(part.count("t") for part in parts), whole.count("m")


def _unrolled(text: str) -> str:
    """Write out what is repeated, as Megatron does: brackets, then single letters."""
    letters = re.sub(r"[\s,]", "", text)
    if len(letters) > _MOST_LENGTH:
        raise _no_layout(text, _LAYOUT_EXAMPLE)
    for pattern in (_GROUP, _REPEATED):
        length = len(letters) + sum(
            len(group[1]) * int(group[2] or 1) for group in pattern.finditer(letters)
        )
        if length > 2 * _MOST_LETTERS:
            raise _no_layout(text, _LAYOUT_EXAMPLE)
        letters = pattern.sub(lambda group: group[1] * int(group[2] or 1), letters)
    return letters


def _no_layout(text: str, expected: str) -> InputError:
    return Value(
        text if len(text) < 200 else text[:200] + "..",
        "--pipeline-model-parallel-layout",
    ).error("is no layout of a pipeline", expected)


def need(table: Mapping[str, Any], *options: str) -> None:
    """Refuse a command without one of some sizes, or with one that is none."""
    for option in options:
        size, where = table.get(BY_NAME[option].key), f"--{option}"
        if size is None:
            raise InputError(
                "is missing",
                where=where,
                expected="a model of Megatron-LM, or --model NAME or CONFIG.JSON",
            )
        if int(size) < 1:
            raise Value(size, where).error("must be at least 1", "1")
