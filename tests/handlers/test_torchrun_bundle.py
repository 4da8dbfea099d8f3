import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from monai_fedskew.core import parse, unnest
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.locate import find_bundle

SITES, SEED, ROUNDS, EPOCHS = ("EAST", "NORTH"), 3, 3, 2


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Two prepared synthetic hospitals of 66 edges."""
    return write_synthetic_study(tmp_path_factory.mktemp("data"), sites=SITES, subjects=15, windows=11)


def test_torchrun_of_a_bundle_is_the_simulator_bit_for_bit(data, tmp_path) -> None:
    """Two ranks of the shipped overlay, with AggregateShared and ProximalTerm, against fedbn+fedprox in one process."""
    bundle = find_bundle("abide_connectome")
    files = [str(bundle / "configs" / name) for name in ("train.yaml", "torchrun.yaml")]
    run = {"sites": list(SITES), "data_dir": data, "in_features": 66, "rounds": ROUNDS, "every": EPOCHS, "seed": SEED}
    run |= {"fedprox_mu": 0.5, "output_root": tmp_path}
    launch = ["--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1"]
    call = [
        *(sys.executable, "-m", "torch.distributed.run", *launch, "--rdzv-endpoint", "127.0.0.1:0"),
        *("-m", "monai.bundle", "run", "--config_file", str(files)),
        *(word for name, value in run.items() for word in (f"--{name}", str(value))),
    ]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:4000] + done.stderr[-500:]

    sources = {site: BundleSite(bundle, site, data / site, {"in_features": 66, "fold": SEED % 5}) for site in SITES}
    settings = Settings(rounds=ROUNDS, local_epochs=EPOCHS, seed=SEED)
    outcome = simulate(parse("fedbn+fedprox:mu=0.5", METHODS), sources, settings)

    shared = unnest(outcome.last)["tensors"]
    assert len(shared) == 6
    for site in SITES:
        expected = {**shared, **unnest(outcome.last_private[site])["model"]}
        found = load_file(tmp_path / site / "model.safetensors")
        assert sorted(found) == sorted(expected)
        assert [key for key in found if not torch.equal(found[key], expected[key])] == []
