"""How much of fedbn's gain is running statistics: models of the study of convergence with statistics measured anew.

    python tests/benchmarks/digits_statistics.py --data PREPARED --studies STUDIES

STUDIES is what `digits_studies.py --only convergence` wrote. Every site's final model is scored on the site's test
images as it is, and again after the running means and variances were replaced by those of the site's training images
under the very weights that are scored. No weight changes.
"""

import argparse
from pathlib import Path
from statistics import fmean, stdev

import torch
from digits_studies import METHODS, SEEDS, SITES, STUDIES, WIDTH
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from monai_fedskew.data.images import ImageDataset
from monai_fedskew.networks import DigitsCNN, load_weights


def accuracy(network: nn.Module, data: ImageDataset) -> float:
    """Return the share of images that are recognised, in percent."""
    batch = data.__getitems__(range(len(data)))
    with torch.no_grad():
        return 100 * float((network.eval()(batch["image"]).argmax(1) == batch["label"]).float().mean())


def measure_anew(network: nn.Module, data: ImageDataset) -> None:
    """Replace running statistics by those of all images at once."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.reset_running_stats()
            module.momentum = None  # the mean over batches, here of one
    with torch.no_grad():
        network.train()(data.__getitems__(range(len(data)))["image"])


def score(run: Path, data: Path, seed: int) -> tuple[list[float], list[float]]:
    """Return the accuracy at each site as it is and with statistics measured anew."""
    before, after = [], []
    for site in SITES:
        train, test = (
            ImageDataset(data / site, split, fold=seed, folds=3, validation_fraction=0, channels=3)
            for split in ("train", "test")
        )
        network = DigitsCNN(in_channels=3, n_classes=10, width=WIDTH)
        load_weights(network, run / "sites" / site / "model.safetensors")
        before.append(accuracy(network, test))
        measure_anew(network, train)
        after.append(accuracy(network, test))
    return before, after


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared sources, 699 images each")
    parser.add_argument("--studies", type=Path, required=True, help="the --out of digits_studies.py")
    given = parser.parse_args()
    print(f"| setting | method | statistics | {' | '.join(SITES)} | mean over sources |\n|{'---|' * (len(SITES) + 4)}")
    for number, setting in enumerate(STUDIES["convergence"]):
        for method in METHODS:
            runs = given.studies / "convergence" / f"{number}" / "runs" / method
            scores = [score(runs / f"seed{seed}", given.data, seed) for seed in range(SEEDS)]
            for name, of_seeds in zip(("as they are", "measured anew"), zip(*scores, strict=True), strict=True):
                columns = [*zip(*of_seeds, strict=True), [fmean(of_seed) for of_seed in of_seeds]]
                told = [f"{fmean(column):.1f} ± {stdev(column):.1f}" for column in columns]
                print(f"| {setting.name} | {method} | {name} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
