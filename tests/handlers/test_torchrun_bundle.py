import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from monai_fedskew.core import parse, unnest
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.locate import find_bundle

SITES, SEED, ROUNDS, EPOCHS = ("EAST", "NORTH"), 3, 3, 2
HANDLERS = "monai_fedskew.handlers"

# What a bundle needs beside its train.yaml: which rank is which site, the simulator's first weights, the handlers.
OVERLAY = {
    "sites": list(SITES),
    "rank": {"_target_": "os.getenv", "key": "RANK"},
    "site": "$@sites[int(@rank)]",
    "max_epochs": ROUNDS * EPOCHS,
    "val_interval": 0,
    "initialize": [
        {
            "_target_": "torch.manual_seed",
            "seed": {"_target_": "monai_fedskew.core.derive", "seed": SEED, "part": "network"},
        },
        "$@network",
    ],
    "train#handlers": [
        {
            "_target_": f"{HANDLERS}.AggregateShared",
            "every": EPOCHS,
            "seed": SEED,
            "site": "@site",
        },
        {
            "_target_": f"{HANDLERS}.ProximalTerm",
            "mu": 0.5,
            "every": EPOCHS,
            "share": {"_target_": "monai_fedskew.core.except_modules"},
        },
    ],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Two prepared synthetic hospitals of 66 edges."""
    return write_synthetic_study(tmp_path_factory.mktemp("data"), sites=SITES, subjects=15, windows=11)


def test_torchrun_of_a_bundle_is_the_simulator_bit_for_bit(data, tmp_path) -> None:
    """Two ranks with plain monai.bundle, AggregateShared and ProximalTerm against fedbn+fedprox in one process."""
    bundle, overlay = find_bundle("abide_connectome"), tmp_path / "torchrun.yaml"
    overlay.write_text(yaml.safe_dump({**OVERLAY, "dataset_dir": f"${str(data)!r} + '/' + @site"}))
    launch = ["--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1"]
    call = [
        *(sys.executable, "-m", "torch.distributed.run", *launch, "--rdzv-endpoint", "127.0.0.1:0"),
        *("-m", "monai.bundle", "run", "--config_file", str([str(bundle / "configs" / "train.yaml"), str(overlay)])),
        *("--in_features", "66", "--output_dir", f"${str(tmp_path)!r} + '/' + @site"),
    ]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:4000] + done.stderr[-500:]

    sources = {site: BundleSite(bundle, site, data / site, {"in_features": 66}) for site in SITES}
    settings = Settings(rounds=ROUNDS, local_epochs=EPOCHS, seed=SEED)
    outcome = simulate(parse("fedbn+fedprox:mu=0.5", METHODS), sources, settings)

    shared = unnest(outcome.last)["tensors"]
    assert len(shared) == 6
    for site in SITES:
        expected = {**shared, **unnest(outcome.last_private[site])["model"]}
        found = load_file(tmp_path / site / "model.safetensors")
        assert sorted(found) == sorted(expected)
        assert [key for key in found if not torch.equal(found[key], expected[key])] == []
