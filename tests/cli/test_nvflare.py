"""`fedskew nvflare`: jobs, kits and what a kit would say to a job; what needs processes is in tests/engines."""

import json
import shutil
import stat
from pathlib import Path

import pytest

from monai_fedskew.cli.main import main
from monai_fedskew.engines.nvflare import CLASSES

METHOD = "fedrdn+fedbn"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job folder."""
    call = ["nvflare", "job", "--study", "abide", "--method", METHOD, "--rounds", "3", "--seed", "1"]
    main([*call, "--min-sites", "2", "--task-timeout", "60", "--out", str(tmp_path / "job")])
    return tmp_path / "job"


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A hospital's startup kit, as far as its owner's half goes."""
    return _kit(tmp_path / "A", "fed_client.json", {"client": {"fqsn": "A"}})


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The server's startup kit."""
    return _kit(tmp_path / "server", "fed_server.json", {"servers": []})


def _kit(folder: Path, file: str, content: object) -> Path:
    for name in ("startup", "local"):
        (folder / name).mkdir(parents=True)
    (folder / "startup" / file).write_text(json.dumps(content))
    resources = {"format_version": 2, "class_allow_list": ["nvflare.app_common."], "allow_log_streaming": True}
    (folder / "local" / "resources.json.default").write_text(json.dumps(resources))
    return folder


def _setup(kit: Path, *words: object) -> None:
    main(["nvflare", "site-setup", str(kit), *map(str, words)])


def _fails(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["nvflare", *map(str, words)])
    held = capsys.readouterr()
    return int(str(stopped.value.code)), held.out + held.err


def test_a_job_is_two_configurations_of_plain_values(job: Path) -> None:
    """No code and no path; sites get method, study and settings, the server also timeout and resume."""
    assert sorted(str(path.relative_to(job)) for path in job.rglob("*.*")) == [
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "meta.json",
    ]
    meta = json.loads((job / "meta.json").read_text())
    assert (meta["name"], meta["min_clients"]) == ("abide", 2)
    assert set(meta["fedskew"]) == {"monai_fedskew", "nvflare"}
    client = json.loads((job / "app" / "config" / "config_fed_client.json").read_text())
    (executor,) = client["executors"]
    assert executor["tasks"] == ["survey", "fit", "evaluate", "finish"]
    assert executor["executor"]["path"] == CLASSES["site"]
    args = executor["executor"]["args"]
    assert set(args) == {"method", "study", "settings"}
    assert (args["method"], args["settings"]["rounds"], args["settings"]["seed"]) == (METHOD, 3, 1)
    assert all(isinstance(value, str | int | float) for value in args["settings"].values())
    server = json.loads((job / "app" / "config" / "config_fed_server.json").read_text())
    assert server["workflows"][0]["path"] == CLASSES["server"]
    assert server["workflows"][0]["args"]["task_timeout"] == 60
    assert server["server"] == {"task_request_interval": 0.2}


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--study", "a/b", "--method", METHOD, "--rounds", "1"], 2, "--study='a/b'"),
        (["--study", "a", "--method", "fedbm", "--rounds", "1"], 2, "did you mean fedbn"),
        (["--study", "a", "--method", METHOD], 2, "--rounds is missing"),
        (["--study", "a", "--method", METHOD, "--rounds", "1", "--set", "lr=1"], 2, "No such option"),
        (["--study", "a", "--method", "local", "--rounds", "1"], 2, "method local: a baseline without messages"),
        (["--study", "a", "--method", "pooled", "--rounds", "1"], 2, "method pooled: a baseline without messages"),
    ],
)
def test_a_wrong_job_is_not_written(
    words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Found before anything is written, with what to do."""
    got, said = _fails(capsys, "job", *words, "--out", tmp_path / "job")
    assert (got, (tmp_path / "job").exists()) == (code, False)
    assert text in said


def test_a_run_that_cannot_be_replaced_is_not_removed(
    study: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A method without messages is refused before --force takes the old RUN folder away."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").touch()
    call = ("simulate", tiny_bundle, "--data", study, "--method", "local", "--rounds", 1, "--out", run, "--force")
    code, said = _fails(capsys, *call)
    assert (code, "method local: a baseline without messages" in said) == (2, True)
    assert (run / "run.json").exists()


def test_force_replaces_jobs_only(job: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An existing job is replaced with --force, any other folder is left alone."""
    call = ["job", "--study", "new", "--method", "fedavg", "--rounds", "1", "--out"]
    code, said = _fails(capsys, *call, job)
    assert (code, "exists; choose another folder or replace it with --force" in said) == (2, True)
    main(["nvflare", *call, str(job), "--force"])
    assert json.loads((job / "meta.json").read_text())["name"] == "new"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    code, said = _fails(capsys, *call, tmp_path / "mine", "--force")
    assert (code, "is no job that `fedskew nvflare job` wrote" in said) == (1, True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_site_setup_says_first_and_writes_once(
    kit: Path, study: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --apply nothing changes; with it one class is added and nothing else; again changes nothing."""
    own = ("--bundle", tiny_bundle, "--data", study / "A")
    _setup(kit, *own)
    assert "Nothing was written; --apply does." in capsys.readouterr().out
    assert sorted(path.name for path in (kit / "local").iterdir()) == ["resources.json.default"]
    _setup(kit, *own, "--apply")
    default = json.loads((kit / "local" / "resources.json.default").read_text())
    resources = json.loads((kit / "local" / "resources.json").read_text())
    assert resources == default | {"class_allow_list": ["nvflare.app_common.", CLASSES["site"]]}
    file = json.loads((kit / "local" / "fedskew.json").read_text())
    assert file == {"site": "A", "bundle": str(tiny_bundle), "data": str(study / "A")}
    before = {path: path.stat().st_mtime_ns for path in (kit / "local").iterdir()}
    capsys.readouterr()
    _setup(kit, "--apply")
    said = capsys.readouterr().out
    assert f"class_allow_list allows {CLASSES['site']} already" in said
    assert "is as it should be" in said
    assert {path: path.stat().st_mtime_ns for path in (kit / "local").iterdir()} == before


def test_site_setup_keeps_what_the_owner_wrote(kit: Path, study: Path, tiny_bundle: Path) -> None:
    """Own keys, order of the list, overrides and the file's mode stay; what was there lies beside it."""
    local = kit / "local"
    held = {"zz": 1, "class_allow_list": ["b.", "a."], "components": [{"id": "x"}], "allow_log_streaming": False}
    (local / "resources.json").write_text(json.dumps(held))
    (local / "resources.json").chmod(0o640)
    (local / "fedskew.json").write_text(json.dumps({"overrides": {"lr": 0.01}}))
    _setup(kit, "--bundle", tiny_bundle, "--data", study / "A", "--state", kit / "state", "--apply")
    resources = json.loads((local / "resources.json").read_text())
    assert list(resources) == list(held)
    assert resources == held | {"class_allow_list": ["b.", "a.", CLASSES["site"]]}
    assert stat.S_IMODE((local / "resources.json").stat().st_mode) == 0o640
    (backup,) = local.glob("resources.json.2*")
    assert json.loads(backup.read_text()) == held
    file = json.loads((local / "fedskew.json").read_text())
    assert (file["overrides"], file["state"]) == ({"lr": 0.01}, str(kit / "state"))


@pytest.mark.parametrize("policy", [["*"], ["monai_fedskew."]], ids=["all", "package"])
def test_a_wider_policy_is_enough(
    policy: list[str], kit: Path, study: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLARE's own judgement counts: a prefix or the star allows the class, so nothing is added."""
    (kit / "local" / "resources.json").write_text(json.dumps({"class_allow_list": policy}))
    _setup(kit, "--bundle", tiny_bundle, "--data", study / "A", "--apply")
    assert "allows" in capsys.readouterr().out
    assert json.loads((kit / "local" / "resources.json").read_text()) == {"class_allow_list": policy}


def test_a_kit_without_a_list_gets_flares_own_and_ours(kit: Path, study: Path, tiny_bundle: Path) -> None:
    """A list replaces FLARE's default, so the default must be in it."""
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    (kit / "local" / "resources.json").write_text(json.dumps({"format_version": 2}))
    _setup(kit, "--bundle", tiny_bundle, "--data", study / "A", "--apply")
    resources = json.loads((kit / "local" / "resources.json").read_text())
    assert resources["class_allow_list"] == [*DEFAULT_CLASS_ALLOW_LIST, CLASSES["site"]]


def test_a_wrong_setup_writes_nothing(
    kit: Path, server: Path, study: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Missing or wrong values, options of the other role, and folders that are no kit."""
    whole = ("--bundle", tiny_bundle, "--data", study / "A")
    for words, text in (
        ((kit, "--apply"), "give --bundle and --data"),
        ((kit, "--bundle", tiny_bundle, "--data", tmp_path / "nowhere", "--apply"), "is no folder"),
        ((kit, *whole, "--runs", tmp_path, "--apply"), "--runs does not belong to a site"),
        ((server, "--apply"), "give --runs DIR"),
        ((server, *whole, "--apply"), "--bundle does not belong to a server"),
        ((tmp_path, "--apply"), "is no startup kit"),
    ):
        code, said = _fails(capsys, "site-setup", *words)
        assert code in (1, 2)
        assert text in said
    assert [path.name for path in (kit / "local").iterdir()] == ["resources.json.default"]
    (kit / "local" / "resources.json").write_text("{")
    code, said = _fails(capsys, "site-setup", kit, *whole, "--apply")
    assert (code, "cannot be read as JSON" in said) == (1, True)


def test_preflight_names_every_reason(
    kit: Path, job: Path, study: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Policy and site file first; then version, data, network and folders; each with what to do, exit code 1."""
    code, said = _fails(capsys, "preflight", kit, "--job", job)
    assert code == 1
    assert f"NO policy: Component '{CLASSES['site']}' is not in allow_list" in said
    assert "site-setup" in said
    assert "NO site file: " in said
    shutil.copytree(study / "A", tmp_path / "data")
    _setup(kit, "--bundle", tiny_bundle, "--data", tmp_path / "data", "--apply")
    capsys.readouterr()
    main(["nvflare", "preflight", str(kit), "--job", str(job)])
    said = capsys.readouterr().out
    assert "NO" not in said
    assert "ok name: A, " in said
    assert said.splitlines()[-1] == "the job would run here"
    meta = json.loads((job / "meta.json").read_text())
    meta["fedskew"]["monai_fedskew"] = "7.0.0"
    (job / "meta.json").write_text(json.dumps(meta))
    array = next((tmp_path / "data").glob("*.npy"))
    array.write_bytes(array.read_bytes()[:-8] + b"\x00" * 8)
    (kit / "local" / "state").touch()
    code, said = _fails(capsys, "preflight", kit, "--job", job)
    assert code == 1
    assert "NO version: job made with monai-fedskew 7.0.0" in said
    (kit / "local" / "state").unlink()
    code, said = _fails(capsys, "preflight", kit, "--job", job)
    assert "NO data: " in said
    assert "was changed after it was prepared" in said


def test_preflight_finds_a_method_that_does_not_fit_and_code(
    kit: Path, job: Path, study: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings this site cannot meet are found by opening its bundle; a job with code is told from ours."""
    (kit / "local" / "fedskew.json").write_text(json.dumps({"overrides": {"no_such_id": 1}}))
    _setup(kit, "--bundle", tiny_bundle, "--data", study / "A", "--apply")
    (job / "app" / "custom").mkdir()
    code, said = _fails(capsys, "preflight", kit, "--job", job)
    assert code == 1
    assert "NO code: the job ships code" in said
    assert "no such id" in said


def test_preflight_at_the_server(server: Path, job: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Policy, versions, and where runs go; rounds that are there are told, so that --resume is thought of."""
    code, said = _fails(capsys, "preflight", server, "--job", job)
    assert code == 1
    assert f"NO policy: Component '{CLASSES['server']}'" in said
    assert f"NO runs: {server / 'local' / 'fedskew.json'} does not exist" in said
    _setup(server, "--runs", tmp_path / "runs", "--apply")
    (tmp_path / "runs" / "abide" / "rounds" / "2").mkdir(parents=True)
    capsys.readouterr()
    main(["nvflare", "preflight", str(server), "--job", str(job)])
    said = capsys.readouterr().out
    assert "study abide has 2 rounds; submit the job with --resume to go on" in said


def test_a_kit_under_another_name_than_its_data(
    kit: Path, study: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data of B in the kit of A: refused, nothing written, with the option that says that it is one hospital."""
    call = (kit, "--bundle", tiny_bundle, "--data", study / "B", "--apply")
    code, said = _fails(capsys, "site-setup", *call)
    assert code == 1
    assert "prepared for site 'B'" in said
    assert "--prepared-as B" in said
    assert not (kit / "local" / "fedskew.json").exists()
    _setup(*call[:-1], "--prepared-as", "B", "--apply")
    assert json.loads((kit / "local" / "fedskew.json").read_text())["prepared_as"] == "B"


def test_submit_needs_an_admins_kit(kit: Path, job: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A hospital's kit cannot send a job, and an existing --out is not written into."""
    code, said = _fails(capsys, "submit", job, "--startup-kit", kit)
    assert (code, "cannot log in" in said) == (2, True)
    code, said = _fails(capsys, "submit", job, "--startup-kit", kit, "--out", tmp_path)
    assert (code, "exists; choose another folder" in said) == (2, True)


def test_resume_is_told_to_the_server_alone(job: Path, tmp_path: Path) -> None:
    """The job that is sent differs in one argument of the controller; the folder given stays as it is."""
    from monai_fedskew.cli.nvflare_job import with_resume

    sent = with_resume(job, tmp_path)
    assert sent == tmp_path / "abide"
    server, client = Path("app", "config", "config_fed_server.json"), Path("app", "config", "config_fed_client.json")
    assert json.loads((sent / server).read_text())["workflows"][0]["args"]["resume"] is True
    assert "resume" not in json.loads((job / server).read_text())["workflows"][0]["args"]
    assert (sent / client).read_text() == (job / client).read_text()
