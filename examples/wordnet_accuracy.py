"""Test accuracy on WordNet: GraphSAGE against methods that need no graph, on the same splits.

A benchmark that trains should train on a real task. This measures the test accuracy of always
answering the class most frequent among the training nodes, of logistic regression on the features
alone, and of the project's GraphSAGE with its sampler. It runs on a CPU in a few minutes::

    python examples/wordnet_accuracy.py
    python examples/wordnet_accuracy.py --epochs 20 --seeds 1
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.models import Trainer, build_model
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.registry import prepare_dataset
from gatherbench.datasets.store import open_dataset

PENALTIES = (0.0, 1e-6, 1e-5, 1e-4)


def majority(data: GraphDataset) -> float:
    """Return the test accuracy of always answering the training nodes' most frequent class."""
    answer = np.bincount(data.labels[data.train_ids]).argmax()
    return float((data.labels[data.test_ids] == answer).mean())


def logistic_regression(data: GraphDataset, steps: int) -> tuple[float, float, float]:
    """Fit multinomial logistic regression by L-BFGS from zero; convex, so without a seed.

    Returns:
        Test accuracy and the squared-norm penalty that was best on the validation nodes, and the
        largest entry of its gradient at the end, which is 0 at the optimum.
    """
    x, y = torch.from_numpy(np.array(data.features)), torch.from_numpy(np.array(data.labels))
    train, val, test = (
        torch.from_numpy(np.array(ids)) for ids in (data.train_ids, data.val_ids, data.test_ids)
    )
    x_train, y_train = x[train], y[train]
    weight = torch.zeros(x.shape[1], data.spec.num_classes, requires_grad=True)
    bias = torch.zeros(data.spec.num_classes, requires_grad=True)
    accuracies = []
    for penalty in sorted(PENALTIES, reverse=True):  # each starts from the last result
        solver = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe")

        def loss(penalty: float = penalty) -> torch.Tensor:
            weight.grad = bias.grad = None
            value = cross_entropy(x_train @ weight + bias, y_train)
            value = value + penalty * weight.square().sum()
            value.backward()
            return value

        solver.step(loss)
        loss()  # gradient at the end, as the line search may end on a trial point
        with torch.no_grad():
            right = (x @ weight + bias).argmax(dim=1) == y
        accuracy = right[val].float().mean().item(), right[test].float().mean().item()
        accuracies.append((*accuracy, penalty, float(weight.grad.abs().max())))
    _, at_test, penalty, gradient = max(accuracies)
    return at_test, penalty, gradient


def graphsage(data: GraphDataset, workload: Workload, epochs: int) -> float:
    """Train GraphSAGE; return its test accuracy after the last epoch, with every neighbour."""
    sampler = NeighborSampler(data.indptr, data.indices, workload.fanouts)
    every = NeighborSampler(data.indptr, data.indices, [-1] * workload.layers)
    features, labels = np.asarray(data.features), torch.from_numpy(np.array(data.labels))
    model = build_model(workload, data.spec.feature_dim, data.spec.num_classes)
    trainer = Trainer(model, labels, torch.device("cpu"))
    for epoch in range(epochs):
        batches = epoch_seeds(data.train_ids, workload.batch_size, workload.seed, epoch)
        for i, seeds in enumerate(batches):
            batch = sampler.sample(seeds, batch_seed(workload.seed, epoch, i))
            trainer.step(torch.from_numpy(features[batch.input_ids.numpy()]), batch)
    right = 0
    for seeds in torch.from_numpy(np.array(data.test_ids)).split(workload.batch_size):
        batch = every.sample(seeds, 0)
        right += trainer.correct(torch.from_numpy(features[batch.input_ids.numpy()]), batch)
    return right / len(data.test_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100, help="L-BFGS iterations per penalty")
    options = parser.parse_args()

    data = open_dataset(prepare_dataset("wordnet"))
    print(f"{'':34}test accuracy   seconds")
    started = time.perf_counter()
    print(f"{'most frequent class':34}{majority(data):13.4f}{time.perf_counter() - started:10.1f}")

    started = time.perf_counter()
    accuracy, penalty, gradient = logistic_regression(data, options.steps)
    seconds = time.perf_counter() - started
    print(
        f"{'logistic regression on features':34}{accuracy:13.4f}{seconds:10.1f}"
        f"   penalty {penalty:g}, gradient {gradient:.0e}"
    )

    reached = []
    for seed in range(options.seeds):
        started = time.perf_counter()
        workload = Workload("wordnet", hidden=options.hidden, seed=seed)
        reached.append(graphsage(data, workload, options.epochs))
        label = f"GraphSAGE, {options.hidden} hidden, seed {seed}"
        print(f"{label:34}{reached[-1]:13.4f}{time.perf_counter() - started:10.1f}")
    spread = np.std(reached, ddof=1) if len(reached) > 1 else 0.0
    print(
        f"{'GraphSAGE, mean and st. deviation':34}{np.mean(reached):13.4f} ± {spread:.4f}"
        f"   {options.epochs} epochs"
    )


if __name__ == "__main__":
    main()
