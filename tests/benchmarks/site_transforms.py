"""What normalising by a site costs beside MONAI's NormalizeIntensityd with the same numbers.

    python tests/benchmarks/site_transforms.py

All in one run and in turns, one thread: dictionaries with one MetaTensor, as LoadImaged leaves it (with 30 entries of
meta data), 2-D pictures of three channels and 3-D volumes of one and of four. RandSiteNormalized draws from six sites.
NormalizeIntensityd is given the statistics of one of them as subtrahend and divisor, channel by channel. It writes
its result into the image it was given and keeps no record; the site transforms leave the image alone and note what they
did for `inverse`, as MONAI's invertible transforms do.
"""

from collections.abc import Callable
from typing import Any

import torch
from monai.data import MetaTensor
from monai.transforms import NormalizeIntensityd
from ratios import conditions, options, show, take_turns

from monai_fedskew.transforms import RandSiteNormalized, SiteNormalized, SiteStatistics

SHAPES = {
    "2-D, 3 x 64 x 64": ((3, 64, 64), 200),
    "2-D, 3 x 256 x 256": ((3, 256, 256), 100),
    "3-D, 1 x 96 x 96 x 96": ((1, 96, 96, 96), 20),
    "3-D, 4 x 160 x 160 x 96": ((4, 160, 160, 96), 2),
}
MONAI, OWN, RAND = "NormalizeIntensityd", "SiteNormalized", "RandSiteNormalized"


def main() -> None:
    """Measure each shape."""
    asked = options(__doc__)
    torch.set_num_threads(1)
    conditions("site_transforms.py")
    for name, (shape, calls) in SHAPES.items():
        candidates = {key: _repeated(transform, shape, calls) for key, transform in _transforms(shape[0]).items()}
        times = take_turns(candidates, pairs=[(RAND, MONAI)], most=3 if asked.quick else 41, limit_seconds=60)
        print(name)
        show(f"  {MONAI}", times.of(MONAI, scale=1e6), unit="us")
        for key in (OWN, RAND):
            show(f"  {key} / {MONAI}", times.ratio(key, MONAI), most=1.0)


def _transforms(channels: int) -> dict[str, Callable[[Any], Any]]:
    sites = [
        SiteStatistics(f"site{k}", (100.0 + k,) * channels, (20.0 + k,) * channels, "image", 1, 50) for k in range(6)
    ]
    return {
        MONAI: NormalizeIntensityd("image", sites[0].mean, sites[0].std, channel_wise=True),
        OWN: SiteNormalized("image", sites[0]),
        RAND: RandSiteNormalized("image", sites, own_site="site0"),
    }


def _repeated(transform: Callable[[Any], Any], shape: tuple[int, ...], calls: int) -> Callable[[], float]:
    meta = {"filename_or_obj": "volume.nii.gz", **{f"entry{k}": k for k in range(30)}}
    image = MetaTensor(torch.randn(shape) * 20 + 100, affine=torch.eye(4), meta=meta)

    def run() -> float:
        for _ in range(calls):
            transform({"image": image})
        return calls

    return run


if __name__ == "__main__":
    main()
