"""--partition and --clients, from the command line to the files they leave."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from monai_fedskew.cli.main import main
from monai_fedskew.data.synthetic import write_synthetic_study

SETS = ("--set", "in_features=10", "--set", "batch_size=16", "--choose", "last")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prepared sites of 10 edges, 40 subjects each."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    return write_synthetic_study(folder, sites=("EAST", "WEST"), subjects=40, windows=4, n_regions=5)


@pytest.fixture(scope="module")
def run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over twelve clients."""
    out = tmp_path_factory.mktemp("runs") / "run"
    main([*_call(prepared, out), "--method", "fedavg", "--partition", "dirichlet:alpha=1", "--clients", "12"])
    return out


def _call(prepared: Path, out: Path, command: str = "simulate") -> list[str]:
    return [command, "abide_connectome", "--data", str(prepared), "--rounds", "1", *SETS, "--out", str(out)]


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_dealt_run_is_recorded_and_leaves_predictions_only(run: Path) -> None:
    """run.json has the sites, the partition and every client's classes; no bundle that could not run is written."""
    about, summary = _read(run / "run.json"), _read(run / "summary.json")
    assert set(about["sites"]) == {"EAST", "WEST"}
    assert about["partition"]["how"] == "dirichlet:alpha=1"
    dealt = about["partition"]["clients"]
    assert list(dealt) == list(summary["sites"]) == [f"client{k:02}" for k in range(1, 13)]
    assert all(one["samples"] == sum(one["labels"]) for one in dealt.values())
    for name in dealt:
        assert [path.name for path in (run / "sites" / name).iterdir()] == ["predictions.csv"]
    lines = [line for name in dealt for line in (run / "sites" / name / "predictions.csv").read_text().split()[1:]]
    assert {line.split("/")[0] for line in lines} == {"EAST", "WEST"}
    assert len({line.rsplit(",", 4)[0] for line in lines}) == len(lines) == 2 * 8 * 4


def test_a_resume_takes_the_same_partition_only(
    run: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another alpha or number of clients, or none, is another run."""
    call = [*_call(prepared, run), "--method", "fedavg", "--resume"]
    main([*call, "--partition", "dirichlet:alpha=1", "--clients", "12"])
    for other, now in (
        (["--partition", "dirichlet:alpha=2", "--clients", "12"], "'dirichlet:alpha=2 over 12 clients'"),
        (["--partition", "dirichlet:alpha=1", "--clients", "8"], "'dirichlet:alpha=1 over 8 clients'"),
        ([], "None"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([*call, *other])
        message = f"partition was 'dirichlet:alpha=1 over 12 clients', now it is {now}"
        assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("method", ["local", "sitenorm+pooled"])
def test_both_ends_of_a_study_are_scored_at_the_clients(method: str, prepared: Path, tmp_path: Path) -> None:
    """`local` trains each client alone; `pooled` trains one model on all rows and is scored on each client's."""
    call = [*_call(prepared, tmp_path / "run"), "--method", method, "--partition", "homogeneous", "--clients", "3"]
    main(call)
    assert set(_read(tmp_path / "run" / "summary.json")["sites"]) == {"client01", "client02", "client03"}


def test_a_comparison_takes_a_partition_and_a_fraction(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods of a seed are compared over the same clients; each seed deals otherwise."""
    out = tmp_path / "cmp"
    more = ["--method", "fedavg", "--method", "fedbn", "--seeds", "2", "--fraction", "0.25", "--jobs", "2"]
    main([*_call(prepared, out, "compare"), *more, "--partition", "dirichlet:alpha=1", "--clients", "8"])
    dealt = [
        _read(out / "runs" / method / f"seed{seed}" / "run.json")["partition"]
        for seed in (0, 1)
        for method in ("fedavg", "fedbn")
    ]
    assert dealt[0] == dealt[1] != dealt[2] == dealt[3]
    assert (out / "report.html").is_file()


def test_parts_of_sites_are_clients_and_a_pool_of_all_rows_is_not_compared_with_some(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of three parts of each site: 32 training subjects there, 10 or 11 a client; all test rows once."""
    out = tmp_path / "run"
    more = ["--partition", "by-site:parts=3,clients=2"]
    main([*_call(prepared, out), "--method", "fedbn", *more])
    dealt = _read(out / "run.json")["partition"]
    assert dealt["how"] == "by-site:parts=3,clients=2"
    assert list(dealt["clients"]) == ["EAST-01", "EAST-02", "WEST-01", "WEST-02"]
    assert {one["subjects"] for one in dealt["clients"].values()} <= {9, 10, 11}
    lines = [line for path in out.glob("sites/*/predictions.csv") for line in path.read_text().split()[1:]]
    assert len({line.rsplit(",", 4)[0] for line in lines}) == len(lines) == 2 * 8 * 4
    main(["report", str(out)])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*_call(prepared, tmp_path / "pool"), "--method", "pooled", *more])
    says = "partition by-site:parts=3,clients=2: pooled trains on all rows, of which the clients hold a part"
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--partition", "homogeneous"), "--partition homogeneous needs the number of clients"),
        (("--clients", "4"), "--clients 4 needs --partition"),
        (("--partition", "by-site:parts=2", "--clients", "4"), "takes no --clients"),
        (("--partition", "by-site:parts=9"), "site EAST: partition by-site:parts=9, test rows: 8 subjects cannot be"),
        (("--partition", "by_label", "--clients", "4"), "must be homogeneous, or dirichlet"),
        (("--partition", "homogeneous", "--clients", "40"), "test rows: 16 subjects cannot be dealt to 40 clients"),
        (
            ("--partition", "homogeneous", "--clients", "10", "--choose", "best"),
            "4 of 10 clients have no validation rows to choose the best round by",
        ),
        (("--partition", "dirichlet:alpha=0.001", "--clients", "8"), "none of 2000 draws"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_wrong_partition_writes_nothing(
    command: str, more: tuple[str, ...], says: str, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found before a folder is made."""
    with pytest.raises(SystemExit):
        main([*_call(prepared, tmp_path / "out", command), "--method", "fedavg", *more])
    assert says in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["nvflare", "simulate"], ["nvflare", "job"], ["flower", "run"]])
def test_engines_do_not_take_a_partition(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Their data stay at the sites: there is nothing to pool and deal."""
    with pytest.raises(SystemExit):
        main([*command, "--partition", "homogeneous", "--clients", "4"])
    assert re.search("No such (option|command)", capsys.readouterr().err)
