"""NVIDIA FLARE: in its simulator, and as separate processes with mutual TLS on loopback; cases 33, 34 and 35."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from engines.poc import ADMIN, SERVER, Federation, federation
from laws import difference
from loopback import read_state
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.fuel.utils import fobs
from nvflare.private.fed.utils import fed_utils
from safetensors import safe_open

from monai_fedskew.cli.execute import RunSpec, execute
from monai_fedskew.cli.main import fedskew
from monai_fedskew.cli.nvflare_job import write_job
from monai_fedskew.core.messages import Broadcast, Update
from monai_fedskew.engines import nvflare
from monai_fedskew.errors import StateError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.exchange import Reply, Request
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.wire import pack, unpack_reply, unpack_request

COMPOSED = "fedrdn+fedbn+fedprox:mu=0.2"


def _call(*words: object) -> Any:
    """Run the command line in this process."""
    return CliRunner().invoke(fedskew, ["nvflare", *map(str, words)])


def _rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def _assert_same(run: Path, states: Mapping[str, Path], expected: Path, rounds: int) -> None:
    """Server, history and private state at the sites, bit for bit."""
    held = checkpoint.load(expected, rounds)
    assert difference(checkpoint.load(run, rounds).server, held.server) == ""
    assert (run / "history.jsonl").read_text() == (expected / "history.jsonl").read_text()
    for site, folder in states.items():
        assert difference(read_state(folder, rounds), held.private[site]) == "", site


@pytest.fixture(scope="module")
def simulated(study: Path, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The embedded simulator's RUN folder of the composed method over sites A and B, by rounds."""

    def run(rounds: int) -> Path:
        out = tmp_path_factory.mktemp("simulated") / str(rounds)
        execute(RunSpec(tiny_bundle, study, COMPOSED, Settings(rounds=rounds), out, ("A", "B")))
        return out

    return run


def test_the_simulator_of_flare_equals_ours(
    simulated: Callable[[int], Path], study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """Model, private state, history and test scores, bit for bit; what is written says what stays at the sites.

    Case 34: after two rounds of four steps batch norm has counted 2 x 4 batches, in the site's own folder.
    """
    out, two = tmp_path / "study", ("--site", "A", "--site", "B")
    call = ("simulate", tiny_bundle, "--data", study, "--method", COMPOSED, "--rounds", 2, *two, "--out", out)
    done = _call(*call)
    assert done.exit_code == 0, done.output + str(done.exception)
    expected = simulated(2)
    _assert_same(out, {site: out / "flare" / "state" / site for site in "AB"}, expected, 2)
    one, other = (json.loads((run / "summary.json").read_text()) for run in (out, expected))
    for key in ("sites", "mean", "worst", "chosen_round", "shared_keys", "private_keys", "shared_bytes", "failures"):
        assert one[key] == other[key], key
    assert f"{COMPOSED} on FLARE: 2 of 2" in done.output
    assert "mean" in done.output
    kept = read_state(out / "flare" / "state" / "A", 2)
    assert int(kept["model/1.num_batches_tracked"]) == 2 * 4
    with safe_open(out / "model.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["site_private"]) == sorted(
            key[6:] for key in kept if key.startswith("model/")
        )
        assert not any(key.startswith("1.") for key in file.keys())  # noqa: SIM118
    assert (out / "sites" / "A" / "model.safetensors").is_file()
    refused = _call(*call)
    assert refused.exit_code == 1
    assert "exists; choose another folder" in str(refused.exception)


def test_sites_that_fail_lie_or_come_late(tmp_path: Path) -> None:
    """Case 33: n = 10, 30, 60 with values 1, 2, 3 give 2.5; round 2 without C 70 / 40 = 1.75; then 2.5 again.

    A's loss in a round is (w - 1)^2 / 2 of the model it received: 1.125 for 2.5, 0.28125 for 1.75. C lets round 4 time
    out (4 s, once: until it asks for work again nobody waits for it), then answers as A, then with
    nothing, then breaks.
    """
    settings, work = Settings(rounds=14, choose="last", min_sites=2), tmp_path / "work"
    write_job("numbers", "fedavg", settings, task_timeout=4, resume=False, out=work / "numbers")
    _as(work / "numbers" / "app" / "config" / "config_fed_client.json", "flare_sites.NumberExecutor")
    local = work / "workspace" / "local"
    local.mkdir(parents=True)
    (local / "resources.json").write_text(json.dumps({"class_allow_list": ["flare_sites.", "monai_fedskew."]}))
    (local / "fedskew.json").write_text(json.dumps({"runs": str(tmp_path / "runs")}))
    _simulate(work / "numbers", work, "A,B,C")
    rows = _rows(tmp_path / "runs" / "numbers")
    losses = {r["round"]: r["value"] for r in rows if r["site"] == "A" and r.get("metric") == "loss"}
    assert [losses[round] for round in (2, 3, 4, 5, 14)] == pytest.approx([1.125, 0.28125, 1.125, 0.28125, 0.28125])
    told = [(r["round"], r["site"], r["event"], r["reason"]) for r in rows if r.get("event") in ("failed", "missing")]
    assert {site for _, site, _, _ in told} == {"C"}
    assert told[0] == (2, "C", "failed", "RuntimeError; the site's own log says more")
    assert told[1] == (4, "C", "failed", "no answer within 4 s")
    missing = [(round, reason) for round, _, kind, reason in told if kind == "missing"]
    assert missing[:2] == [(5, "not connected"), (6, "not connected")]
    failed = [reason for _, _, kind, reason in told[2:] if kind == "failed"]
    assert "answers as A" in failed[0]
    assert "use one version of monai-fedskew everywhere" in failed[1]
    assert set(failed[2:-1]) == {"FLARE's return code EXECUTION_RESULT_ERROR; the site's log says why"}
    assert "fit: RuntimeError: scanner on fire" in (work / "workspace" / "C" / "log.txt").read_text()
    assert "scanner on fire" not in (work / "workspace" / "C" / "error_log.txt").read_text()


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")  # in FLARE's call of aiohttp
def test_a_policy_that_refuses_us_and_a_process_that_dies(
    simulated: Callable[[int], Path], study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """On separate processes with mutual TLS: the job that the sites refused runs after site-setup, with no restart.

    In round 3 or later the site's job process dies by SIGKILL; FLARE ends the job, and --resume goes on, bit for bit.
    """
    with federation(tmp_path / "flare", ("A", "B")) as running:
        kits = {name: running.kit(name) for name in (SERVER, "A", "B")}
        job, run = _job(tmp_path / "study", 8), tmp_path / "runs" / "study"
        assert _call("site-setup", kits[SERVER], "--runs", run.parent, "--apply").exit_code == 0
        _refused(running, job)
        before = _pids(running)
        for site in "AB":
            done = _call("site-setup", kits[site], "--bundle", tiny_bundle, "--data", study / site, "--apply")
            assert done.exit_code == 0, done.output
        done = _call("preflight", kits["A"], "--job", job)
        assert done.exit_code == 0, done.output
        assert "the job would run here" in done.output
        _kill(running, job, run)
        done = _call("submit", job, "--startup-kit", running.kit(ADMIN), "--resume", "--out", tmp_path / "result")
        assert done.exit_code == 0, f"{done.output}{done.exception}{running.console(SERVER, 'A', 'B')}"
        assert _pids(running) == before
        _assert_same(run, {site: kits[site] / "local" / "state" for site in "AB"}, simulated(8), 8)
        published = {path.name for path in (tmp_path / "result").iterdir()}
        assert published == {"run.json", "history.jsonl", "summary.json", "model.safetensors"}


def _job(folder: Path, rounds: int) -> Path:
    settings = Settings(rounds=rounds, min_sites=2)
    write_job(folder.name, COMPOSED, settings, task_timeout=60, resume=False, out=folder)
    return folder


def _refused(running: Federation, job: Path) -> None:
    done = _call("preflight", running.kit("A"), "--job", job)
    assert done.exit_code == 1
    assert f"NO policy: Component '{nvflare.CLASSES['site']}' is not in allow_list" in done.output
    assert "NO site file: " in done.output
    done = _call("submit", job, "--startup-kit", running.kit(ADMIN))
    assert done.exit_code == 1, done.output
    assert f"A: Component '{nvflare.CLASSES['site']}'" in str(done.exception)


def _pids(running: Federation) -> dict[str, int]:
    assert all(process.poll() is None for process in running.running.values())
    return {name: process.pid for name, process in running.running.items()}


def _kill(running: Federation, job: Path, run: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(_call, "submit", job, "--startup-kit", running.kit(ADMIN))
        while (checkpoint.latest(run) or 0) < 2 and not sent.done():
            time.sleep(0.02)
        running.kill_job("B")
        told = sent.result(timeout=120)
    done = checkpoint.latest(run) or 0
    assert (told.exit_code, 2 <= done < 8) == (1, True), told.output
    assert "FINISHED:EXECUTION_EXCEPTION: FLARE ended the job (aborted, or a process died)" in str(told.exception)
    assert "send it with --resume" in str(told.exception)


def test_an_error_at_a_site_stays_in_its_own_log(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """FLARE's kits stream error_log.txt to the server: what a site's thread logs is not in it, what others log is."""
    handler = logging.FileHandler(tmp_path / "error_log.txt")
    handler.setLevel(logging.ERROR)
    logging.root.addHandler(handler)
    try:
        with nvflare._kept_here():
            logging.error("subject 7 in /data")
            other = threading.Thread(target=logging.error, args=("a message of FLARE",))
            other.start()
            other.join()
        logging.error("later")
    finally:
        logging.root.removeHandler(handler)
        handler.close()
    assert (tmp_path / "error_log.txt").read_text().split("\n") == ["a message of FLARE", "later", ""]
    assert "subject 7 in /data" in caplog.messages


def test_any_array_passes() -> None:
    """Case 35: 0-d, empty and boolean entries keep shape, dtype and value through FLARE's serialisation, both ways."""
    state = {
        "bn.num_batches_tracked": torch.tensor(7),
        "fc.weight": torch.tensor([1.5, -0.0, 3.0]),
        "fc.bias": torch.empty(0),
        "mask": torch.tensor([True, False]),
        "half": torch.tensor([1.0], dtype=torch.float16),
    }
    request = Request(
        "fit", "study", "run", 3, (1, 2), Broadcast(4, state, {"part": {"mean": torch.zeros(2, 1)}, "empty": {}})
    )
    got = unpack_request(nvflare.from_shareable(_sent(nvflare.to_shareable(pack(request)))))
    assert got.cast is not None
    assert (got.task, got.since, got.keep, got.cast.round) == ("fit", 3, (1, 2), 4)
    assert difference(got.cast.tensors, state) == ""
    assert set(got.cast.aux) == {"part", "empty"}
    reply = Reply(Update("A", 4, state, 10, 2, 4, {}, {"loss": 0.5}))
    back = unpack_reply(nvflare.from_shareable(_sent(nvflare.to_shareable(pack(reply)))))
    assert isinstance(back.message, Update)
    assert difference(back.message.tensors, state) == ""
    with pytest.raises(StateError, match="use one version of monai-fedskew everywhere"):
        nvflare.from_shareable(Shareable())


def test_filters_of_flare_see_the_shared_weights_alone() -> None:
    """ExcludeVars, as a hospital's privacy.json may force it, takes what it names; it does not see the side channel."""
    update = Update(
        "A", 1, {"fc.weight": torch.ones(2), "fc.bias": torch.ones(1)}, 10, 2, 4, {"p": {"k": torch.ones(1)}}, {}
    )
    sent = nvflare.to_shareable(pack(Reply(update)))
    filtered = ExcludeVars(exclude_vars=["fc.weight"]).process(sent, FLContext())
    dxo = from_shareable(filtered)
    assert "fc.weight" not in dxo.data
    assert dxo.meta["aux"]["p/k"].tolist() == [1.0]
    assert "fc.weight" not in str(dxo.meta)


def _sent(shareable: Shareable) -> Shareable:
    fed_utils.nvflare_fobs_initialize()  # as every process of FLARE begins; there is no public name for it
    return fobs.loads(fobs.dumps(shareable))


def _as(path: Path, executor: str) -> None:
    config = json.loads(path.read_text())
    config["executors"][0]["executor"]["path"] = executor
    path.write_text(json.dumps(config))


def _simulate(job: Path, work: Path, sites: str) -> None:
    tests = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests / 'engines'}"}
    # as `fedskew nvflare simulate` does, and why it does, but with a job and a policy of our own
    simulator = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", str(job)]
    options = ["-w", str(work / "workspace"), "-c", sites, "-t", str(len(sites.split(",")))]
    done = subprocess.run([*simulator, *options], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
