"""Measure a site: from batches at hand, or from image files in several processes."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from monai_fedskew.core.ranges import require_whole
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.transforms.calculator import StatisticsCalculator
from monai_fedskew.transforms.statistics import Region, SiteStatistics, StdMode

__all__ = ["load_image", "measure", "measure_files"]

File = str | Path


def measure(batches: Iterable[Tensor], *, site: str, std_mode: StdMode | None = None, ddof: int = 1) -> SiteStatistics:
    """Measure mean and std in one pass in float64, stable for any offset; every value counts, background too.

    Args:
        batches: images (B, C, *spatial) or vectors (B, F), without random augmentation.
        site: name of the site, for messages.
        std_mode: see ``SiteStatistics``; None means "image" for images and "pooled", that is per feature, for
            vectors. Vectors measured with "image" count as images of one channel and F values.
        ddof: 0 or 1.

    Raises:
        ConfigError: an unknown std_mode or ddof.
        DataError: no example, too few values for ``ddof``, a value that is not finite, or batches that disagree in
            their number of channels.

    >>> measure([torch.tensor([[[0.0, 2.0]], [[10.0, 14.0]]])], site="A", std_mode="image", ddof=0).std
    (1.5,)
    """
    calculator = StatisticsCalculator(site, std_mode=std_mode, ddof=ddof)
    for batch in batches:
        calculator.update_batch(batch)
    return calculator.result()


def measure_files(
    files: Sequence[File],
    *,
    site: str,
    masks: Sequence[File] | None = None,
    std_mode: StdMode | None = None,
    ddof: int = 1,
    region: Region | None = None,
    load: Callable[[Any], Any] | None = None,
    workers: int = 0,
    on_file: Callable[[int, int], None] | None = None,
) -> SiteStatistics:
    """Measure image files; the result is bit for bit the same for any order and any number of processes.

    Args:
        files: images.
        site: name of the site.
        masks: one a file, in the same order; only values where its mask is not 0 count.
        std_mode: as for ``StatisticsCalculator``.
        ddof: 0 or 1.
        region: as for ``StatisticsCalculator``; by default "mask" where masks are given, "all" else.
        load: file -> (C, *spatial); by default ``load_image``, which reads what MONAI reads. Give the deterministic
            transforms that come before normalisation in training, as ``Compose([LoadImage(...), ...])``.
        workers: processes that read and measure, 0 for this one alone. They are spawned: ``load`` must be picklable,
            and a script must start under ``if __name__ == "__main__"``.
        on_file: told how many files are done, and of how many.

    Raises:
        ConfigError: a wrong definition, workers, or another number of masks than files.
        DataError: no files, one that cannot be read, or as ``StatisticsCalculator.update``; the file is named.

    >>> import tempfile; import numpy as np
    >>> files = [Path(tempfile.mkdtemp()) / f"{k}.npy" for k in range(2)]
    >>> for file, values in zip(files, ([0, 2], [10, 14])):
    ...     np.save(file, np.array([values]))
    >>> measure_files(files, site="A", ddof=0, load=np.load).std
    (1.5,)
    """
    require_whole(f"statistics of site {site}", "workers", workers, 0)
    if masks is not None and len(masks) != len(files):
        raise ConfigError(f"statistics of site {site}: {len(masks)} masks for {len(files)} files; give one a file")
    region = region or ("all" if masks is None else "mask")
    total = StatisticsCalculator(site, std_mode=std_mode, ddof=ddof, region=region)
    one = partial(_measured, total.to_state(), load or load_image)
    covers: Sequence[File | None] = [None] * len(files) if masks is None else masks
    pairs = list(zip(files, covers, strict=True))
    with ExitStack() as stack:
        for done, state in enumerate(_mapped(stack, one, pairs, workers), start=1):
            total.merge(StatisticsCalculator.from_state(state))
            if on_file is not None:
                on_file(done, len(files))
    return total.result()


def load_image(file: File) -> Any:
    """Read an image channel first, as MONAI's LoadImage does.

    NIfTI is read by nibabel at once, in the type it is stored in, which takes half the time: what LoadImage adds, meta
    data and a copy as float32, is of no use here.
    """
    if str(file).endswith((".nii", ".nii.gz")):
        import nibabel

        values = np.asanyarray(nibabel.load(file).dataobj)
        if values.dtype.kind in "iuf":
            return values[None] if values.ndim <= 3 else np.moveaxis(values, -1, 0)
    return _loader()(file)


@cache
def _loader() -> Callable[[File], Any]:
    from monai.transforms import LoadImage  # here: a server has no use for MONAI

    with warnings.catch_warnings():
        # MONAI 1.6.1 warns, whatever is to be read, where pydicom is installed without NVIDIA's decoder.
        warnings.filterwarnings("ignore", message="NvImgCodec")
        loader: Callable[[File], Any] = LoadImage(image_only=True, ensure_channel_first=True)
    return loader


def _mapped(
    stack: ExitStack, one: Callable[[Any], dict[str, Any]], pairs: Sequence[Any], workers: int
) -> Iterator[dict[str, Any]]:
    if not workers:
        return map(one, pairs)
    # Spawned, since a fork of a process that runs threads, as torch does, may hang.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,))
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool.map(one, pairs)


def _measured(definition: dict[str, Any], load: Callable[[Any], Any], pair: tuple[File, File | None]) -> dict[str, Any]:
    file, mask = pair
    calculator = StatisticsCalculator.from_state(definition)
    image = _read(load, file, calculator.site)
    covered = None if mask is None else _read(load, mask, calculator.site)
    calculator.update(image, covered, name=str(file))
    return calculator.to_state()


def _read(load: Callable[[Any], Any], file: File, site: str) -> Any:
    try:
        return load(file)
    except Exception as error:  # whatever a reader says of a file it cannot read
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"site {site}, {file}: cannot be read ({type(error).__name__}: {reason})") from error
