"""Options of training scripts, and what becomes of those that nothing here holds."""

import pytest

from nestsim.launch.formats.deepspeed.script import option_words, read_options
from topologies.errors import InputError


def test_the_last_option_of_a_name_counts_with_all_its_words() -> None:
    words = ["train.py", "--a_b", "1", "--c=2", "3", "--a-b", "4", "5", "--", "-x"]
    assert option_words(words) == {"a-b": ("4", "5", "--", "-x"), "c": ("2", "3")}
    assert option_words(["--flag", "--other=", "--flag"]) == {
        "flag": (),
        "other": ("",),
    }


@pytest.mark.parametrize(
    ("values", "is_replaced"),
    [
        ((), True),
        (("true",), True),
        (("8",), True),
        (("8", "false"), True),  # the first word says whether it is on
        (("false",), False),
        (("0", "8"), False),
        (("no",), False),
    ],
)
def test_what_is_switched_off_needs_nothing_instead(
    values: tuple[str, ...], is_replaced: bool
) -> None:
    read = read_options({"lora-rank": values})
    assert ("--lora-rank" in read.replaced) == is_replaced
    assert read.ignored == ([] if is_replaced else ["--lora-rank"])
    assert read.effects.assumed == (("--lora-rank",) if is_replaced else ())
    assert set(read.kept()) == {"lora-rank"}


def test_what_is_not_known_at_all_is_ignored() -> None:
    read = read_options({"run-name": ("first",)})
    assert (read.ignored, read.replaced) == (["--run-name"], {})


def test_scripts_of_megatron_have_its_options_alone() -> None:
    sizes = {"num-layers": ("2",), "hidden-size": ("64",)}
    assert read_options(sizes).is_megatron
    assert not read_options({"num-layers": ("2",)}).is_megatron
    with pytest.raises(InputError, match="no option of Megatron-DeepSpeed"):
        read_options({**sizes, "run-name": ("first",)})
