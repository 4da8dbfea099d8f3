"""`fedskew nvflare` before kits and jobs that were edited or damaged, and a server that goes away."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from monai_fedskew.cli.main import main
from monai_fedskew.cli.nvflare_job import read_job
from monai_fedskew.cli.nvflare_kit import Kit, setup
from monai_fedskew.cli.nvflare_submit import session
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.errors import ConfigError, DataError, RoundError

LIST = "class_allow_list"


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A hospital's startup kit."""
    for name in ("startup", "local"):
        (tmp_path / "A" / name).mkdir(parents=True)
    (tmp_path / "A" / "startup" / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "A"}}))
    (tmp_path / "A" / "local" / "resources.json.default").write_text(json.dumps({LIST: ["nvflare.app_common."]}))
    return tmp_path / "A"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job folder."""
    call = ["nvflare", "job", "--study", "abide", "--method", "fedbn", "--rounds", "3", "--out", str(tmp_path / "job")]
    main(call)
    return tmp_path / "job"


def _edit(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


@pytest.mark.parametrize("content", [{}, {"client": 3}, {"client": {}}, {"client": {"fqsn": 7}}])
def test_a_kit_that_does_not_name_its_site_is_refused(content: Any, kit: Path) -> None:
    """The file and the key are named."""
    (kit / "startup" / "fed_client.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="fed_client.json: client.fqsn=.* must be the site's name"):
        Kit.of(kit)


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 100_000, f'{{"{LIST}": "x"}}', f'{{"{LIST}": null}}', f'{{"{LIST}": [1]}}']
)
def test_damaged_resources_are_named_and_kept(
    text: str, kit: Path, job: Path, study: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By site-setup, which writes nothing, and by preflight, which looks at the rest as well."""
    path = kit / "local" / "resources.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"local/resources.json: "):
        setup(Kit.of(kit), {"bundle": str(tiny_bundle), "data": study / "A"}, is_applied=True)
    assert path.read_text() == text
    assert sorted(p.name for p in path.parent.iterdir()) == ["resources.json", "resources.json.default"]
    with pytest.raises(SystemExit, match="1"):
        main(["nvflare", "preflight", str(kit), "--job", str(job)])
    said = capsys.readouterr().out
    assert f"NO policy: {path}: " in said
    assert "the job would be refused or fail here" in said


def test_a_setup_that_would_fail_half_way_is_not_begun(
    kit: Path, study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """A folder where fedskew.json belongs, a kit without local, a file where runs belong; looking writes nothing."""
    given = {"bundle": str(tiny_bundle), "data": study / "A"}
    setup(Kit.of(kit), given, is_applied=False)
    assert [path.name for path in (kit / "local").iterdir()] == ["resources.json.default"]
    (kit / "local" / "fedskew.json").mkdir()
    with pytest.raises(ConfigError, match="fedskew.json is a folder; move it away"):
        setup(Kit.of(kit), given, is_applied=True)
    assert not (kit / "local" / "resources.json").exists()
    shutil.copytree(kit, tmp_path / "server")
    (tmp_path / "server" / "startup" / "fed_server.json").write_text("{}")
    (tmp_path / "server" / "local" / "fedskew.json").rmdir()
    with pytest.raises(ConfigError, match="fedskew.json: runs .* is a file"):
        setup(Kit.of(tmp_path / "server"), {"runs": kit / "startup" / "fed_client.json"}, is_applied=True)
    shutil.rmtree(kit / "local")
    with pytest.raises(DataError, match="resources.json.default does not exist; restore the startup kit"):
        setup(Kit.of(kit), given, is_applied=True)


def _args(content: Any) -> Any:
    return content["executors"][0]["executor"]["args"]


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("meta.json", lambda c: c.update(fedskew=None)),
        ("meta.json", lambda c: c.update(deploy_map={})),
        ("config_fed_client.json", lambda c: _args(c).update(study="../x")),
        ("config_fed_client.json", lambda c: _args(c).update(method="fedavg")),
        ("config_fed_client.json", lambda c: _args(c)["settings"].update(rounds=4)),
        ("config_fed_client.json", lambda c: _args(c)["settings"].update(nosuch=4)),
        ("config_fed_server.json", lambda c: c["workflows"][0].update(args=3)),
    ],
)
def test_a_job_that_was_edited_is_no_job(file: str, change: Any, job: Path) -> None:
    """Also where its two halves name different studies, methods or settings."""
    _edit(next(job.rglob(file)), change)
    with pytest.raises(DataError, match="is no job that `fedskew nvflare job` wrote"):
        read_job(job)


@pytest.mark.parametrize("method", [3, "nosuch", "pooled"])
def test_a_job_of_a_method_that_cannot_be_is_no_job(method: Any, job: Path) -> None:
    """In both halves."""
    _edit(next(job.rglob("config_fed_client.json")), lambda c: _args(c).update(method=method))
    _edit(next(job.rglob("config_fed_server.json")), lambda c: c["workflows"][0]["args"].update(method=method))
    with pytest.raises(DataError, match="is no job that `fedskew nvflare job` wrote"):
        read_job(job)


def test_a_folder_beside_out_that_is_not_ours_is_left_alone(
    study: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """OUT.flare, where FLARE's workspace lies while a study runs; with --force too."""
    (tmp_path / "run.flare").mkdir()
    (tmp_path / "run.flare" / "thesis.tex").touch()
    call = ["nvflare", "simulate", str(tiny_bundle), "--data", str(study), "--method", "fedavg", "--rounds", "1"]
    for more in ([], ["--force"]):
        with pytest.raises(SystemExit, match="2"):
            main([*call, "--out", str(tmp_path / "run"), *more])
        assert "is in the way and none of ours" in capsys.readouterr().err
    assert (tmp_path / "run.flare" / "thesis.tex").exists()


def test_a_site_whose_name_flare_does_not_take_is_named(
    tmp_path: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before its simulator starts, which says no more than an exit code."""
    data = write_synthetic_study(tmp_path / "data", sites=("A", "Ä 1"), subjects=16, windows=4, n_regions=6)
    call = ["nvflare", "simulate", str(tiny_bundle), "--data", str(data), "--method", "fedavg", "--rounds", "1"]
    with pytest.raises(SystemExit, match="2"):
        main([*call, "--out", str(tmp_path / "run")])
    assert "site 'Ä 1': FLARE takes letters a-z, digits and _ . ~ - in a name" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


class _Gone:
    """A session whose server went away."""

    def __init__(self, user: str, kit: str, timeout: float) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("error", [RuntimeError("session is closed"), ConnectionResetError("reset")])
def test_a_server_that_goes_away_is_one_error(error: Exception, kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what becomes of the job; our own errors and Ctrl-C pass as they are."""
    (kit / "startup" / "fed_admin.json").write_text(json.dumps({"admin": {"username": "admin@x"}}))
    monkeypatch.setattr("monai_fedskew.engines.nvflare.new_secure_session", _Gone)
    with (
        pytest.raises(RoundError, match="the server does not answer any more .* send it again with --resume"),
        session(kit),
    ):
        raise error
    for ours in (DataError("x"), KeyboardInterrupt(), FileNotFoundError("x")):
        with pytest.raises(type(ours)), session(kit):
            raise ours


def test_a_wrong_job_is_found_before_logging_in(kit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kit is none of an admin's, which would be told else."""
    with pytest.raises(SystemExit, match="1"):
        main(["nvflare", "submit", str(tmp_path), "--startup-kit", str(kit)])
    assert "is no job that `fedskew nvflare job` wrote" in capsys.readouterr().err
