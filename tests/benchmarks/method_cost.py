"""What a step of local training costs with each method, beside FedAvg's: seconds, operations, stored values.

    python tests/benchmarks/method_cost.py

The network is the ResNet-56 of FedAlign's CIFAR experiments (bottlenecks [6, 6, 6], 100 classes, 32 x 32), trained on
batches of 64 random images through MONAI's trainer and a whole `Client.fit`, one thread; all in one run, in turns.
Operations are counted by torch (`FlopCounterMode`: convolutions and matrix products) in a site's second round, when
every method is at work: all of them, and without the backward of convolutions, for the paper's table 5 counts forward
passes. Values stored are what lies in memory for the method in the middle of a round, beside network, gradients,
optimizer and batch. `--device cuda` measures on a GPU.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from cifar_resnet import RandomImages
from ignite.engine import Events
from ratios import Times, conditions, show, take_turns
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.site import Site

BASE = "fedavg"
# operations beside FedAvg's in table 5 of Mendieta et al. 2022, arXiv 2111.14213
PAPER = {
    "fedprox:mu=0.0001": 1.0,
    "mixup": 1.0,
    "stochdepth": 82.4 / 87.3,
    "fedalign": 89.1 / 87.3,
    "gradaug:n=1,mu=2": 133.9 / 87.3,
    "gradaug:n=2": 170.7 / 87.3,
    "moon": 262.2 / 87.3,
}
AIMS: dict[str, dict[str, float]] = {"fedalign": {"most": 1.25}, "gradaug:n=2": {"least": 1.5}}


def main() -> None:
    """Time, then count, all methods in one run."""
    asked = _options()
    conditions("method_cost.py")
    source = RandomImages(*((32, 16, 1) if asked.quick else (64, 64, 6)), device=asked.device)
    fits = {name: started(name, source) for name in (BASE, *PAPER)}
    report(time_all({name: fit for name, (fit, _) in fits.items()}, asked))
    few = replace(source, images=4, batch=4)
    counted = {name: operations(started(name, few)[0], few.images, 1 if asked.quick else 16) for name in fits}
    print("\nMillions of products for one image of a training step: all, and without gradients; and beside fedavg's")
    for name, both in counted.items():
        whole, forward = (f"{n / 2e6:10.1f}{n / base:7.2f} x" for n, base in zip(both, counted[BASE], strict=True))
        print(f"{name:<24}{whole}{forward}" + (f"   (paper {PAPER[name]:.2f} x)" if name in PAPER else ""))
    print("\nValues stored in the middle of a round (millions)")
    for name, (fit, client) in fits.items():
        print(f"{name:<24}{stored(fit, client) / 1e6:10.2f}")


def started(name: str, source: RandomImages) -> tuple[Callable[[], int], Client]:
    """A client that has trained one round, and a function that trains the next one each time it is called."""
    method, settings = parse_method(name), Settings(rounds=2, choose="last")
    client, server = Client(method, source, settings), Server(method, settings)
    server.open([client.survey()])
    client.fit(server.cast())
    cast = server.cast()
    rounds = itertools.count(2)  # what a method draws depends on the round
    return lambda: client.fit(Broadcast(next(rounds), cast.tensors, cast.aux)).steps, client


def operations(fit: Callable[[], int], images: int, repeats: int) -> tuple[float, float]:
    """Count operations for one image, all and without gradients; where a method draws, the mean of several rounds."""
    for _ in range(repeats):  # what a method builds once, in its first steps, is no cost of a step
        fit()
    counter = FlopCounterMode(display=False)
    with counter:
        for _ in range(repeats):
            fit()
    by_kind = counter.get_flop_counts()["Global"]
    gradients = sum(count for kind, count in by_kind.items() if "backward" in str(kind))
    whole = counter.get_total_flops()
    return whole / (images * repeats), (whole - gradients) / (images * repeats)


def stored(fit: Callable[[], int], client: Client) -> int:
    """Count the values that the parts hold after a step, each once, without what the network itself holds."""
    found: list[int] = []

    def look() -> None:
        own = {value.untyped_storage().data_ptr() for value in client.site.model.state_dict().values()}
        seen: dict[int, int] = {}
        for bound in client.bound.values():
            for value in _tensors(vars(bound), set()):
                seen[value.untyped_storage().data_ptr()] = value.numel()
        found.append(sum(count for pointer, count in seen.items() if pointer not in own))

    with client.site.trainer.add_event_handler(Events.ITERATION_COMPLETED, look):
        fit()
    return max(found)


def _tensors(thing: Any, passed: set[int]) -> Iterator[Tensor]:
    """Tensors in containers and in plain objects, not those of modules, sites and optimizers."""
    if id(thing) in passed or isinstance(thing, nn.Module | torch.optim.Optimizer | Site):
        return
    passed.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in list(thing.values()):
            yield from _tensors(value, passed)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _tensors(value, passed)
    elif hasattr(thing, "__dict__") and type(thing).__module__.startswith("monai_fedskew."):
        yield from _tensors(vars(thing), passed)


def time_all(fits: dict[str, Callable[[], int]], asked: argparse.Namespace) -> Times:
    """Seconds per step, in turns."""

    def timed(fit: Callable[[], int]) -> Callable[[], int]:
        def run() -> int:
            steps = fit()
            if asked.device != "cpu":
                torch.cuda.synchronize()
            return steps

        return run

    pairs = [(name, BASE) for name in AIMS]
    most = 2 if asked.quick else 31
    return take_turns(
        {name: timed(fit) for name, fit in fits.items()}, pairs=pairs, least=min(7, most), most=most, limit_seconds=900
    )


def report(times: Times) -> None:
    """Print seconds per step, then the ratios."""
    print("\nSeconds per step of 64 images")
    for name in times.seconds:
        show(name, times.of(name), unit="s")
    print(f"\nBeside {BASE}")
    for name in PAPER:
        show(name, times.ratio(name, BASE), **AIMS.get(name, {}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats; the figures mean nothing")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    return parser.parse_args()


if __name__ == "__main__":
    main()
