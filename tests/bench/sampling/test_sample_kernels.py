"""The GPU sampler's kernels: what the CPU draws, under sanitizers, compiled, and wrong ones."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.shim.execute import ShimError

from gatherbench.bench.sampling import device_sampler
from gatherbench.bench.sampling.device_sampler import DeviceSampler
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.splitmix import GOLDEN, derive, mix
from gatherbench.kernels.compiler import compile_source
from tools.sass import disassemble

from ..model.test_link_compute import Operations
from .host_kernels import SOURCE, built, on_host
from .minibatches import same

HOST = torch.device("cpu")
NODES = 500
Graph = tuple[NDArray[np.int64], NDArray[Any]]


def graph_of(dtype: type) -> Graph:
    """Degrees 0 to 40, one node with 1000 neighbours, parallel edges and self-loops."""
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 41, NODES)
    degrees[[0, NODES - 1, 7]] = 0, 10, 1000
    indptr = np.cumsum([0, *degrees], dtype=np.int64)
    return indptr, rng.integers(0, NODES, indptr[-1]).astype(dtype)


def conforms() -> None:
    """One sampler after another, each with several minibatches; raises where one is wrong."""
    for dtype in (np.int32, np.int64):
        graph = graph_of(dtype)
        for fanouts in ((10, 5), (1,), (-1, 3), (39, 40), (999,), (3, -1, 2)):
            right, tried = NeighborSampler(*graph, fanouts), DeviceSampler(*graph, fanouts, HOST)
            for seed, seeds in enumerate(([7], [0], [499, 7, 3], list(range(480, 500)), [8, 9])):
                wanted = right.sample(torch.tensor(seeds), seed)
                assert same(wanted, tried.sample(torch.tensor(seeds), seed))


@pytest.mark.usefixtures("kernels_on_host")
def test_minibatch_after_minibatch_is_the_cpu_s():
    conforms()


@pytest.mark.usefixtures("kernels_on_host")
def test_a_graph_that_stays_in_host_memory_is_given_by_its_mapped_address(monkeypatch):
    """The address is a tensor here, as the kernels run in a process of their own."""
    registered = []

    class Registration:
        def __init__(self, part: torch.Tensor, device: int) -> None:
            registered.append((part.tolist(), device))
            self.address = part.clone()
            part.zero_()

    asked: list[str] = []

    def anonymous(shape: tuple[int, int], dtype: torch.dtype, *, memory: str) -> Any:
        asked.append(memory)
        return torch.empty(shape, dtype=dtype)

    monkeypatch.setattr(device_sampler, "empty", anonymous)
    monkeypatch.setattr(device_sampler, "HostRegistration", Registration)
    graph, seeds = graph_of(np.int32), torch.arange(20)
    sampler = DeviceSampler(*graph, (5, 5), HOST, in_place=True)
    assert set(asked) == {"shared"}, "on pages of its own"
    assert registered == [(part.tolist(), 0) for part in graph]
    assert same(sampler.sample(seeds, 2), NeighborSampler(*graph, (5, 5)).sample(seeds, 2))
    DeviceSampler(*graph, (5, 5), HOST)
    assert len(registered) == 2


def test_what_a_failed_minibatch_left_does_no_harm(kernels_on_host, monkeypatch):
    graph, seeds = graph_of(np.int32), torch.arange(20)
    sampler, right = DeviceSampler(*graph, (5, 5), HOST), NeighborSampler(*graph, (5, 5))
    for broken in device_sampler._KERNELS:
        kernels_on_host.launched.clear()

        def launch(name: str, *given: Any, broken: str = broken) -> None:
            kernels_on_host.launch(name, *given)
            if kernels_on_host.launched.count(broken) == 2:  # in the second layer
                raise RuntimeError(broken)

        with monkeypatch.context() as patch:
            patch.setattr(device_sampler, "launch_threads", launch)
            with pytest.raises(RuntimeError, match=broken):
                sampler.sample(seeds, 1)
        assert same(sampler.sample(seeds, 2), right.sample(seeds, 2))


@pytest.mark.usefixtures("kernels_on_host")
def test_threads_wait_for_one_another():
    graph, seeds = graph_of(np.int64), torch.arange(30)
    sampler, right = DeviceSampler(*graph, (5, 5), HOST), NeighborSampler(*graph, (5, 5))
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda seed: sampler.sample(seeds, seed), range(12)))
    assert all(same(one, right.sample(seeds, seed)) for seed, one in enumerate(drawn))


def test_a_layer_is_four_launches_and_two_prefix_sums(kernels_on_host):
    """No size is asked for meanwhile; all are copied in the end."""
    sampler, seeds = DeviceSampler(*graph_of(np.int32), (10, 5), HOST), torch.arange(9)
    kernels_on_host.launched.clear()
    with Operations() as operations:
        sampler.begin(seeds, 0)
    assert kernels_on_host.launched == 2 * list(device_sampler._KERNELS)
    checks = {"_unique2": 1, "aminmax": 1, "_local_scalar_dense": 2}
    assert operations.counts == {"cumsum": 4, "copy_": 2} | checks


def test_nodes_and_places_beyond_32_bits(kernels_on_host, tmp_path, monkeypatch):
    """Files with holes, which take no room; the draw is worked out beside them."""
    nodes, degree, fanout = 2**32 + 1000, 50, 20
    node, begin = nodes - 3, 2**32 + 5
    shapes = {"indptr": nodes + 1, "indices": begin + degree, "first": nodes}
    sampler = DeviceSampler(np.array([0, 0]), np.array([], np.int64), (fanout,), HOST)
    sampler.num_nodes, sampler._most_edges = nodes, begin + degree
    tensors = []
    for name, length in shapes.items():
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(8 * length)
        tensors.append(torch.from_numpy(np.memmap(path, np.int64, "r+")))
        monkeypatch.setitem(kernels_on_host.files, tensors[-1].data_ptr(), path)
    (indptr, indices), sampler._first = sampler._graph, _ = tensors[:2], tensors[2]
    indptr[node], indptr[node + 1] = begin, begin + degree
    indices[begin:] = nodes - 1 - 7 * torch.arange(degree)

    state, taken = mix(derive(3, 0) + GOLDEN * (node + 1)), list[int]()
    for turn in range(fanout):
        last = degree - fanout + turn
        place = mix(state + GOLDEN * (turn + 1)) * (last + 1) >> 64
        taken.append(last if place in taken else place)
    batch = sampler.sample(torch.tensor([node]), 3)
    assert batch.input_ids.tolist() == [node, *(nodes - 1 - 7 * place for place in taken)]
    assert batch.edges[0].tolist() == [list(range(1, fanout + 1)), [0] * fanout]
    for path in map(tmp_path.joinpath, shapes):
        path.unlink()


@pytest.mark.parametrize("arch", ["sm_75", "sm_100"])
def test_the_machine_code_needs_no_memory_of_its_own(arch):
    """On the oldest and on the newest."""
    cubin = compile_source(SOURCE.read_text(), arch, "sample.cu")
    assert all(name.encode() in cubin for name in device_sampler._KERNELS)
    counts = disassemble(cubin).counts()
    assert counts["spills"] == counts["stack bytes"] == 0
    assert counts["LDG.64"] > 0


#: What is right, and what it becomes. The first may draw the right edges all the same: only a
#: sanitizer tells.
WRONG = {
    "counts what is behind the last node": ("node < 0 ? 0 :", "node < 0 ? 1 :"),
    "reads behind the last node": ("node < 0 ? 0 : indptr", "indptr"),
    "draws behind the last edge": ("if (edge >= total) return;", ""),
    "enters what is behind the last target": ("if (node < 0) return;\n  } else", "} else"),
    "a thread too many": ("if (p >= positions) return;", "if (p > positions) return;"),
    "targets behind all the room": ("edges[total + edge]", "edges[positions - targets + edge]"),
    "tells the room for nodes": ("sizes[1] = ranks[positions - 1];", "sizes[1] = positions;"),
    "tells the room for edges": ("sizes[0] = ends[targets - 1];", "sizes[0] = targets;"),
    "takes all of every list": ("fanout >= 0 && fanout < degree ?", "false ?"),
    "counts below nothing": ("fanout >= 0 && fanout < degree", "fanout < degree"),
    "with replacement": ("if (drawn(j) == place) return spare + turn;", ""),
    "forgets what was taken in place of another": (
        "if (place < spare || place >= spare + before) return mine;",
        "return mine;",
    ),
    "follows one step only": ("place = drawn(before);\n", "return mine;\n"),
    "never draws the last place": ("(spare + turn + 1);", "(spare + turn);"),
    "turns counted from 0": ("static_cast<u64>(turn + 1)", "static_cast<u64>(turn)"),
    "nodes counted from 0": ("static_cast<u64>(v + 1)", "(unsigned long long)v"),
    "every layer alike": ("sample::mix(key + ", "sample::mix(0 * key + "),
    "a signed shift": ("(z ^ (z >> 30))", "(z ^ static_cast<u64>(static_cast<i64>(z) >> 30))"),
    "another constant": ("0x94D049BB133111EBull", "0x94D049BB133111EDull"),
    "the target before": ("ends[middle] > edge", "ends[middle] >= edge"),
    "narrow indices": ("index_bytes == 4 ?", "index_bytes > 0 ?"),
    "the last store wins": ("atomicMin(first + node, base + p);", "first[node] = base + p;"),
    "sources alone are entered": ("atomicMin(first", "if (p >= targets) atomicMin(first"),
    "every place is a first": ("] == base + p;", "] <= base + p;"),
    "local numbers from 1": ("ranks[place] - 1", "ranks[place]"),
    "leaves what it found behind the last": ("known[p] = -1;", "known[p] = known[p];"),
    "one too many behind the last": (
        "if (p >= ranks[positions - 1])",
        "if (p + 1 >= ranks[positions - 1])",
    ),
}


#: How many are those.
ASTRAY = 5


def wrong_source(names: list[str]) -> str:
    """All of them in one source, which compiles as quickly as one; the environment chooses."""
    source = SOURCE.read_text().replace('extern "C" ', "")
    text = 'static int chosen() { return std::atoi(std::getenv("WRONG_KERNEL")); }\n'
    for number, name in enumerate(names):
        right, wrong = WRONG.get(name, ("", ""))
        assert right in source, f"{name}: the kernels no longer contain {right!r}"
        text += f"namespace wrong_{number} {{\n{source.replace(right, wrong)}\n}}\n"
    for kernel in device_sampler._KERNELS:
        every = ", ".join(f"wrong_{number}::{kernel}" for number in range(len(names)))
        text += f"static decltype(&wrong_0::{kernel}) const {kernel}_of[] = {{{every}}};\n"
        text += f"#define {kernel} {kernel}_of[chosen()]\n"
    return text


@pytest.fixture(scope="module")
def wrong_kernels(
    sample_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, int]]:
    """The program of each of :data:`WRONG`, and its number there."""
    folder, names, found = tmp_path_factory.mktemp("wrong"), list(WRONG), {}
    for sanitize, some in ((True, names[:ASTRAY]), (False, [*names[ASTRAY:], "none"])):
        path = folder / f"wrong_{sanitize}.cu"
        path.write_text(wrong_source(some))
        program = built(folder, path, sanitize=sanitize)
        found |= {name: (program, number) for number, name in enumerate(some)}
    return found


@pytest.mark.parametrize("name", [*WRONG, "none"])
def test_wrong_kernels_are_rejected_and_the_right_one_among_them_is_not(
    wrong_kernels, monkeypatch, name
):
    program, number = wrong_kernels[name]
    monkeypatch.setenv("WRONG_KERNEL", str(number))
    rejected = pytest.raises((AssertionError, ShimError, RuntimeError))
    with on_host(program), rejected if name in WRONG else nullcontext():
        conforms()
