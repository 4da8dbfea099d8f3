"""What clipping and noise do to FedRDN's table, on a synthetic study.

    python tests/benchmarks/private_table.py

Sites of 40 and of 200 training subjects with 6 windows each and 66 edges. For both forms of the table it prints the
privacy of one subject, how far the sent mean is from the exact one (in exact standard deviations, median over channels
and draws) and by which factor the sent std is off (median of the larger of std/exact and exact/std).
"""

import statistics
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from monai_fedskew.data.datasets import ConnectomeDataset
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.transforms import GaussianRelease, measure, privacy_cost

CLIP, DRAWS, DELTA = 1.5, 20, 1e-5  # usual values of the study have a root mean square of about 1.2


def batches(data: ConnectomeDataset) -> Iterator[Tensor]:
    """All rows at once."""
    yield data.__getitems__(range(len(data)))["image"]


def errors(data: ConnectomeDataset, mode: str, noise: float) -> tuple[float, float]:
    """Median error of mean and of std."""
    exact = measure(batches(data), site=data.site, std_mode=mode)
    subjects = torch.from_numpy(np.unique(data.groups, return_inverse=True)[1])
    mean, std = (torch.tensor(values) for values in (exact.mean, exact.std))
    of_mean, of_std = [], []
    for _ in range(DRAWS):
        sent = GaussianRelease(CLIP, noise)(batches(data), subjects, exact)
        of_mean += ((torch.tensor(sent.mean) - mean).abs() / std).tolist()
        ratio = torch.tensor(sent.std) / std
        of_std += torch.maximum(ratio, 1 / ratio).tolist()
    return statistics.median(of_mean), statistics.median(of_std)


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")  # that noise drowns a table is what is to be seen here
    print(f"{'subjects':>8}  {'table':>12}  {'noise':>5}  {'epsilon':>7}  {'mean off by':>11}  {'std off by':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for subjects in (40, 200):
            out = write_synthetic_study(f"{folder}/{subjects}", sites=("NORTH",), subjects=subjects)
            data = ConnectomeDataset(Path(out) / "NORTH", "all")
            for mode, numbers in (("image", 2), ("pooled", 2 * data.n_features)):
                for noise in (0.01, 0.5, 1.0, 2.0):
                    mean, std = errors(data, mode, noise)
                    print(
                        f"{subjects:>8}  {f'{mode}, {numbers}':>12}  {noise:>5}  {privacy_cost(noise, DELTA):>7.2f}  "
                        f"{mean:>7.3f} std  {std:>9.2f}x"
                    )


if __name__ == "__main__":
    main()
