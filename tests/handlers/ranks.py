"""What one rank of a torchrun job does in the tests of AggregateShared: every scenario, one after the other.

Not a test itself. Starting two processes takes ten seconds, so all scenarios share them.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

OUT = Path(sys.argv[1])
RANK = int(os.environ.get("RANK", "0"))

# scenario: (arguments of the handler, epochs, what is changed about the network)
SCENARIOS: dict[str, tuple[dict[str, Any], int, str]] = {
    "samples": ({}, 1, ""),
    "equal": ({"weights": "equal"}, 1, ""),
    "number": ({"weights": 1.0 + RANK}, 1, ""),
    "all": ({"share": "all"}, 1, ""),
    "rounds": ({"every": 2}, 4, ""),
    "private": ({}, 1, "no affine pair"),
    "shapes": ({}, 1, "wider"),
    "keys": ({}, 1, "longer"),
    "no_norm": ({}, 1, "no norm"),
    "every": ({"every": 1 + RANK}, 2, ""),
    "epochs": ({}, 1 + RANK, ""),
    "multiple": ({"every": 2}, 3, ""),
    "twice": ({"site": "S"}, 1, ""),
    "nan": ({}, 1, "nan"),
}


def network(change: str) -> nn.Sequential:
    """A network that starts differently on every rank, and is built differently on the second if so told."""
    torch.manual_seed(RANK)
    change = change if RANK else ""
    width = 4 if change == "wider" else 3
    net = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))
    if change == "longer":
        net.append(nn.Linear(2, 2))
    if change == "no norm":
        net = nn.Sequential(nn.Linear(2, 2))
    if change == "no affine pair":
        net[1] = nn.BatchNorm1d(3, affine=False)
    if change == "nan":
        nn.init.constant_(net[1].bias, torch.nan)
    return net


def data() -> list[dict[str, torch.Tensor]]:
    """Examples of this rank: 4 or 12."""
    generator = torch.Generator().manual_seed(10 + RANK)
    return [
        {"image": torch.randn(2, generator=generator) + RANK, "label": torch.tensor(i % 2)} for i in range(4 + 8 * RANK)
    ]


def play(name: str) -> None:
    """Train as the scenario says; write the network and a log of one tensor around each averaging, or the error."""
    from ignite.engine import Events
    from monai.data import DataLoader
    from monai.engines import SupervisedTrainer

    from monai_fedskew.core import all_keys
    from monai_fedskew.errors import FedSkewError
    from monai_fedskew.handlers.aggregate_shared import AggregateShared

    arguments, epochs, change = SCENARIOS[name]
    net, examples = network(change), data()
    log: list[list[float]] = []
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs,
        train_data_loader=DataLoader(examples, batch_size=len(examples)),
        network=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.5),
        loss_function=nn.CrossEntropyLoss(),
        decollate=False,
    )
    given = {"site": f"S{RANK}", **arguments} | ({"share": all_keys()} if "share" in arguments else {})
    note = lambda: log.append(net[0].bias.tolist())  # noqa: E731  twice the same, before and after
    trainer.add_event_handler(Events.EPOCH_COMPLETED, note)
    AggregateShared(**given).attach(trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, note)
    result: dict[str, Any] = {}
    try:
        trainer.run()
        result = {"state": {key: value.tolist() for key, value in net.state_dict().items()}, "log": log}
    except FedSkewError as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    (OUT / f"{name}.{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the hosts' own, on import
    for scenario in sys.argv[2:] or SCENARIOS:
        play(scenario)
