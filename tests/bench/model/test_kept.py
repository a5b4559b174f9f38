"""Hot rows told from a law: by hand, beside a count, and never impossible."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.model.advise.kept import from_the_law, hit_rate, kept_load, share_of
from gatherbench.bench.model.advise.option import average_load
from gatherbench.bench.model.advise.question import Question, graph_of, graph_sizes, source_graph
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.cached_zero_copy import CachedZeroCopy
from gatherbench.strategies.scores import times_asked


def sizes_of(*classes: tuple[float, float]) -> MinibatchSizes:
    """(nodes, chance that a minibatch asks for one of them) of each class."""
    asked = np.array(classes).T
    rows = float(asked[0] @ asked[1])
    return MinibatchSizes((1.0, rows), (rows,), (), law="made up", asked=asked)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_rows_that_are_asked_for_alike_are_held_by_their_share(share):
    assert hit_rate(sizes_of((1e6, 0.02)), share, 100) == pytest.approx(share)


def test_what_is_in_every_minibatch_is_kept_first():
    """By hand: 1000 rows are in each of 10 minibatches, 9000 are in half of them: 5500 rows in all.

    A tenth holds the 1000 of the 5500; three tenths hold them, and 2000 of the others, which are
    asked for alike."""
    sizes = sizes_of((9000, 0.5), (1000, 1.0))
    # Of those in half of the minibatches one in 2 ** 10 is in all ten: it is kept as well as one of
    # the thousand.
    among = 9000 / 2**10
    assert hit_rate(sizes, 0.1, 10) == pytest.approx(
        1000 / (1000 + among) * (1000 + among / 2) / 5500
    )
    assert hit_rate(sizes, 0.3, 10) == pytest.approx((1000 + 1000) / 5500, rel=1e-3)
    assert hit_rate(sizes, 1.0, 10) == pytest.approx(1.0)
    assert hit_rate(sizes, 0.0, 10) == 0.0


def test_it_is_what_a_count_gives():
    """Two epochs of independent requests: one is counted, the other asked."""
    draw = np.random.default_rng(0)
    chance = draw.permutation(np.repeat([0.5, 0.1, 0.01], [200, 1800, 18_000]))
    epochs = [[torch.from_numpy(np.flatnonzero(draw.random(len(chance)) < chance))
               for _ in range(40)] for _ in range(2)]  # fmt: skip
    first, second = (times_asked(epoch, len(chance)) for epoch in epochs)
    order = np.argsort(-first, kind="stable")
    sizes = sizes_of((200, 0.5), (1800, 0.1), (18_000, 0.01))
    for share in (0.005, 0.05, 0.2):
        kept = order[: int(share * len(chance))]
        counted = second[kept].sum() / second.sum()
        assert hit_rate(sizes, share, 40) == pytest.approx(counted, abs=0.02)


@settings(max_examples=30, deadline=None)
@given(
    classes=st.lists(st.tuples(st.floats(1, 1e8), st.floats(1e-6, 1.0)), min_size=1, max_size=5),
    batches=st.integers(1, 5000),
)
def test_more_is_never_worse_and_no_rate_is_impossible(classes, batches):
    rates = [hit_rate(sizes_of(*classes), share, batches) for share in (0, 0.01, 0.1, 0.5, 1)]
    assert rates == sorted(rates)
    assert all(-1e-9 <= rate <= 1 + 1e-6 for rate in rates)
    assert rates[2] >= 0.1 - 1e-6


def test_a_graph_of_the_generator_is_what_was_counted_on_it():
    """``gatherbench hits products-like --scale 0.2`` counts 12.7, 45.4, 67.0 and 83.3 %."""
    question = Question(source_graph("products-like", scale=0.2))
    (sizes,) = graph_sizes(question)
    for share, counted in ((0.01, 0.127), (0.05, 0.454), (0.1, 0.670), (0.2, 0.833)):
        assert hit_rate(sizes, share, question.batches) == pytest.approx(counted, abs=0.01)


def test_papers_like_caches_as_its_note_says():
    """A tenth of the rows: 80 to 91 % at scales of 0.05 to 1, where papers100M has 98."""
    source = source_graph("papers100M-like")
    assert "here both hold 80 to 91 %" in source.unlike
    rates = []
    for scale in (0.05, 1.0):
        for fanouts in ((25, 10), (15, 10, 5)):
            question = Question(source_graph("papers100M-like", scale=scale), fanouts)
            (sizes,) = graph_sizes(question)
            rates.append(hit_rate(sizes, 0.1, question.batches))
    assert (min(rates), max(rates)) == (pytest.approx(0.8, abs=0.01), pytest.approx(0.91, abs=0.01))


def test_what_is_kept_is_not_read():
    graph = graph_of(1_000_000, 20_000_000, 128, train_nodes=100_000, laws=("rmat",))
    question = Question(graph)
    (sizes,) = graph_sizes(question)
    in_place = average_load(AlignedZeroCopy(), question, sizes)
    for path in from_the_law():
        load = kept_load(path, in_place, question, sizes)
        rate = hit_rate(sizes, share_of(path), question.batches)
        assert load.gpu_link_read_bytes == pytest.approx((1 - rate) * in_place.gpu_link_read_bytes)
        assert load.gpu_table_bytes == pytest.approx(share_of(path) * graph.table_bytes)
        assert load.lookahead == path.lookahead
        assert load.gpu_share == path.gpu_share
    assert {one.policy for one in from_the_law()} == {CachedZeroCopy().policy} == {"presampled"}
