"""Synthetic ABIDE folders: made-up subjects 0000001, 0000002, ... in nilearn's layout."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from monai_fedskew.data.abide.atlas import harvard_oxford
from monai_fedskew.data.abide.timeseries import write_series

HO = [region.label for region in harvard_oxford()]
HO111 = sorted([*HO, "3455"], key=int)
QC = "qc_rater_1,qc_anat_rater_2,qc_func_rater_2,qc_anat_rater_3,qc_func_rater_3"


def random_series(volumes: int, columns: int = 111, seed: int = 0) -> np.ndarray:
    """White noise around 100, sd 5."""
    return np.random.default_rng(seed).standard_normal((volumes, columns)) * 5 + 100


def write_study(folder: Path, samples: Mapping[str, list[int]], *, diagnoses: str = "12") -> Path:
    """Write a scan of the given length for each subject; subjects are numbered through all samples."""
    scans = folder / "ABIDE_pcp" / "cpac" / "filt_noglobal"
    scans.mkdir(parents=True)
    lines, number = [f",Unnamed: 0,SUB_ID,SITE_ID,FILE_ID,DX_GROUP,COMMENT,{QC}"], 0
    for sample, lengths in samples.items():
        for volumes in lengths:
            number += 1
            file_id = f"{sample}_{number:07d}"
            diagnosis = diagnoses[number % len(diagnoses)]
            lines.append(f'{number},{number},{number},{sample},{file_id},{diagnosis},"a, b",OK,OK,maybe,OK,OK')
            write_series(scans / f"{file_id}_rois_ho.1D", HO111, random_series(volumes, seed=number))
    (folder / "ABIDE_pcp" / "Phenotypic_V1_0b_preprocessed1.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., Path]:
    """Make a synthetic study in a fresh folder."""

    def make(samples: Mapping[str, list[int]], **options: str) -> Path:
        return write_study(tmp_path / "data", samples, **options)

    return make
