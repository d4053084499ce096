"""Models that frameworks have by name are found, whatever the length of sequences."""

from estimators.models.library import load_model, model_names
from nestsim.launch.formats.maxtext.sources import MODELS
from nestsim.launch.formats.maxtext.writing import model_name
from nestsim.launch.formats.torchtitan.names import FLAVORS, flavor_of
from nestsim.launch.formats.usual import is_llama, is_published
from tests import failures


@failures.over("name", model_names())
def test_a_model_is_itself_and_no_other(name: str) -> None:
    spec = load_model(name)
    flavor = flavor_of(spec)
    assert flavor == FLAVORS.get(name)
    named = model_name(spec)
    assert (named is None) == (name not in MODELS.values())
    assert named is None or MODELS[named] == name


def test_a_length_makes_no_other_model() -> None:
    assert is_published(load_model("llama3-8b", sequence_length=512), "llama3-8b")
    assert not is_published(load_model("llama3-8b"), "llama3-70b")


def test_llamas_differ_in_sizes_only() -> None:
    assert is_llama(load_model("llama2-7b"))
    assert not is_llama(load_model("llama3.2-1b"))
    assert is_llama(load_model("llama3.2-1b"), tied=True)
    assert not is_llama(load_model("qwen3-8b"))
