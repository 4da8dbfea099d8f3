"""From files to prepared sites and their datasets: numpy, pandas and nibabel; torch for the dataset classes only.

The dataset classes are in `monai_fedskew.data.datasets` and `monai_fedskew.data.batches`, which import torch.
"""

from monai_fedskew.data.manifest import (
    Excluded,
    Region,
    SiteManifest,
    Subject,
    read_manifest,
    site_folders,
    write_manifest,
)
from monai_fedskew.data.splits import Split, split, subject_folds

__all__ = [
    "Excluded",
    "Region",
    "SiteManifest",
    "Split",
    "Subject",
    "read_manifest",
    "site_folders",
    "split",
    "subject_folds",
    "write_manifest",
]
