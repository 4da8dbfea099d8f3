"""A bundle trained by hand, as a user of an engine and MONAI would write it down; for the bare jobs beside ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.bundle import ConfigWorkflow
from numpy.typing import NDArray

__all__ = ["Arrays", "HandTrained", "average", "first_model", "save"]

Arrays = dict[str, NDArray[Any]]
# the received model is scored once; the bundle's own ValidationHandler would score the trained one as well
_HANDLERS = [{"_target_": "LrScheduleHandler", "lr_scheduler": "@lr_scheduler", "print_lr": False}]


class HandTrained:
    """A bundle at one site.

    Args:
        bundle: its folder.
        data: folder of the site's prepared data.
    """

    def __init__(self, bundle: str, data: str) -> None:
        torch.set_num_threads(1)
        self.workflow = _workflow(bundle, **{"dataset_dir": data, "train#handlers": _HANDLERS})
        self.workflow.initialize()
        self.trainer, self.evaluator = self.workflow.trainer, self.workflow.evaluator

    def do_round(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[Arrays, int, dict[str, float]]:
        """Score the received model, train it for an epoch; return it, the number of samples and the scores."""
        trainer, network = self.trainer, self.trainer.network
        network.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in arrays.items()})
        self.evaluator.run()
        trainer.state.max_epochs = trainer.state.epoch + 1
        trainer.run()
        scores = {name: float(value) for name, value in self.evaluator.state.metrics.items()}
        trained = {key: value.numpy() for key, value in network.state_dict().items()}
        return trained, len(trainer.data_loader.dataset), scores


def first_model(bundle: str) -> Arrays:
    """Build the bundle's network at the server, as the engines' own examples do."""
    network = _workflow(bundle).parser.get_parsed_content("network_def")
    return {key: value.numpy() for key, value in network.state_dict().items()}


def average(models: Sequence[Arrays], samples: Sequence[int]) -> Arrays:
    """Return the mean over sites, weighed by samples."""
    weights = np.array(samples) / sum(samples)
    means = {key: sum(w * model[key] for w, model in zip(weights, models, strict=True)) for key in models[0]}
    return {key: np.asarray(value, dtype=models[0][key].dtype) for key, value in means.items()}


def save(out: str, number: int, model: Arrays) -> None:
    """Write the model of a round, as the engines' own persistors do; the file also tells when the round was over."""
    folder = Path(out) / "rounds"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{number}.partial").open("wb") as file:
        np.savez(file, **model)
    (folder / f"{number}.partial").rename(folder / str(number))


def _workflow(bundle: str, **own: Any) -> ConfigWorkflow:
    files = [str(Path(bundle) / "configs" / "train.yaml")]
    return ConfigWorkflow(files, workflow_type="train", logging_file=False, bundle_root=bundle, **own)
