"""FedBN under FLARE's own homomorphic encryption: our Client at the sites, FLARE's ScatterAndGather at the server.

    python tests/benchmarks/encrypted.py [rounds]

Needs tenseal. Provisions a server and two sites with HE keys, starts them on loopback as processes with mutual TLS,
runs a job, and compares what the sites decrypt in each round with the model the simulator broadcasts there. What this
way of running lacks is said in PRIVACY.md.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_constant import AppConstants
from safetensors.torch import load_file, save_file

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.site_file import SiteFile, read_site_file, write_site_file

METHOD, SITES = "fedbn", ("A", "B")


class EncryptedExecutor(Executor):  # type: ignore[misc]
    """Trains what FLARE has decrypted and hands the result to FLARE to encrypt; writes down what it received."""

    def __init__(self, settings: dict[str, Any], notes: str) -> None:
        super().__init__()
        self.settings, self.notes = settings, notes
        self.client: Client | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Do task "train"."""
        site, settings = fl_ctx.get_identity_name(), Settings(**self.settings)
        if self.client is None:
            path = fl_ctx.get_engine().get_workspace().get_file_path_in_site_config("fedskew.json")
            source = read_site_file(Path(path), site).source(settings.seed)
            self.client = Client(parse_method(METHOD), source, settings)
        entries, data = self.client.site.model.state_dict(), from_shareable(shareable).data
        tensors = {
            key: torch.as_tensor(np.asarray(data[key]), dtype=entries[key].dtype).reshape(entries[key].shape)
            for key in sorted(self.client.shared)  # decrypted vectors are flat and in float64
        }
        round = shareable.get_header(AppConstants.CURRENT_ROUND) + 1
        save_file(tensors, f"{self.notes}/{site}-{round}.safetensors")
        update = self.client.fit(Broadcast(round, tensors))
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: update.samples}  # FLARE weighs by this number before it encrypts
        return DXO(DataKind.WEIGHTS, {key: t.numpy() for key, t in update.tensors.items()}, meta).to_shareable()


class FirstModel(ModelPersistor):  # type: ignore[misc]
    """Starts from a file, and notes of what kind the server's entries are after each round."""

    def __init__(self, notes: str) -> None:
        super().__init__()
        self.notes = notes

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        """Read the first model."""
        return make_model_learnable({k: t.numpy() for k, t in load_file(f"{self.notes}/first.safetensors").items()}, {})

    def save_model(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        """Note name, kind and size of each entry as the server holds it."""
        weights = model[ModelLearnableKey.WEIGHTS]
        kinds = {
            k: [type(v).__name__, len(v.serialize()) if hasattr(v, "serialize") else 0] for k, v in weights.items()
        }
        Path(self.notes, "server.json").write_text(json.dumps(kinds))


def _job(rounds: int, settings: Settings, notes: Path) -> Any:
    from encrypted import EncryptedExecutor, FirstModel  # under its own name, not as __main__: FLARE ships the file
    from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
    from nvflare.app_opt.he.intime_accumulate_model_aggregator import HEInTimeAccumulateWeightedAggregator
    from nvflare.app_opt.he.model_decryptor import HEModelDecryptor
    from nvflare.app_opt.he.model_encryptor import HEModelEncryptor
    from nvflare.app_opt.he.model_shareable_generator import HEModelShareableGenerator
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.defs import FilterType

    job = FedJob(name="encrypted", min_clients=len(SITES))
    job.to_server(HEModelShareableGenerator(), id="generator")
    aggregator = HEInTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS, weigh_by_local_iter=False)
    job.to_server(aggregator, id="aggregator")
    job.to_server(FirstModel(str(notes)), id="persistor")
    parts = {"aggregator_id": "aggregator", "persistor_id": "persistor", "shareable_generator_id": "generator"}
    job.to_server(ScatterAndGather(len(SITES), rounds, wait_time_after_min_received=0, **parts))
    job.to_server({"server": {"task_request_interval": 0.2}})
    job.to_clients(EncryptedExecutor(settings.plain(), str(notes)), tasks=["train"])
    job.to_clients(HEModelDecryptor(), tasks=["train"], filter_type=FilterType.TASK_DATA)
    job.to_clients(HEModelEncryptor(weigh_by_local_iter=True), tasks=["train"], filter_type=FilterType.TASK_RESULT)
    job.set_app_packages(["monai_fedskew"])
    return job


def main(rounds: int) -> None:
    """Run the job and print the comparison."""
    tests = Path(__file__).parents[1]
    sys.path.insert(0, str(tests / "engines"))
    from poc import ADMIN, federation

    from monai_fedskew.cli.nvflare_submit import session
    from monai_fedskew.data.synthetic import write_synthetic_study
    from monai_fedskew.engines.simulator import simulate

    settings, bundle = Settings(rounds=rounds, choose="last"), tests / "tiny_bundle"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        notes = root / "notes"
        notes.mkdir()
        data = write_synthetic_study(root / "data", sites=SITES, subjects=16, windows=4, n_regions=6)
        files = {s: SiteFile(s, bundle, data / s, root / "state" / s, root / "out" / s, {}) for s in SITES}
        sources = {site: file.source(settings.seed) for site, file in files.items()}
        first = Client(parse_method(METHOD), sources["A"], settings).survey().tensors
        save_file(dict(first), notes / "first.safetensors")
        with federation(root / "fed", SITES, he=True) as fed:
            for site, file in files.items():
                write_site_file(fed.kit(site) / "local" / "fedskew.json", file)
            _job(rounds, settings, notes).export_job(str(root / "job"))
            began = time.monotonic()
            with session(fed.kit(ADMIN)) as opened:
                number = opened.submit_job(str(root / "job" / "encrypted"))
                print("job ended:", opened.monitor_job(number, timeout=300), f"after {time.monotonic() - began:.0f} s")
        print("at the server:", (notes / "server.json").read_text())
        for round in range(2, rounds + 1):
            expected = simulate(parse_method(METHOD), sources, Settings(rounds=round - 1, choose="last")).cast.tensors
            for site in SITES:
                got = load_file(notes / f"{site}-{round}.safetensors")
                worst = max(float((got[key] - expected[key]).abs().max()) for key in expected)
                print(f"round {round}, site {site}: received model differs from the simulator's by at most {worst:.2g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
