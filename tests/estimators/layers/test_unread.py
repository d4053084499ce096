"""The end of a block that no derivative reads, which some software does not repeat."""

from dataclasses import replace

from estimators.chain import build_layer_table
from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.models.library import load_model
from estimators.platform import Platform
from estimators.software import IDEAL
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from topologies.accelerators import load_accelerator

LLAMA = trace_model(load_model("llama2-7b"))


def repeated(software):
    table = build_layer_table(
        LLAMA,
        degrees=Degrees(micro_batch_size=1),
        training=TrainingSpec(global_batch_size=1),
        platform=Platform(accelerator=load_accelerator("h100-sxm"), software=software),
    )
    place = int(table.is_block.argmax())
    return table.forward_time[place], table.recompute_time["full"][place]


def test_the_end_is_the_last_product_and_its_sum():
    work = layer_work(LLAMA, LLAMA.kinds[1], Degrees(micro_batch_size=1), 2)
    end = [(op.kind, op.n) for op in work.operators if op.is_unread]
    assert end == [("matmul", 4096.0), ("memory", 0.0)]


def test_products_that_are_read_again_are_repeated_whole():
    forward, again = repeated(IDEAL)
    assert again == forward


def test_what_is_left_out_is_a_fifth_of_a_llama_block():
    # Its down projection is 11,008 of 4 x 4,096 + 3 x 11,008 columns of products, and
    # attention and norms take something, too.
    forward, again = repeated(replace(IDEAL, omits_unread=True))
    share = 11008 / (4 * 4096 + 3 * 11008)
    assert 0.75 * share < 1 - again / forward < share
