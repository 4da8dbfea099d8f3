from pathlib import Path

from click.testing import CliRunner

from monai_fedskew.cli.bundle import bundle
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.errors import DataError
from monai_fedskew.sites.locate import find_bundle
from monai_fedskew.sites.scaffold import copy_bundle


def test_list_names_bundles_and_studies() -> None:
    """The list shows each shipped bundle with its studies."""
    result = CliRunner().invoke(bundle, ["list"])
    assert result.exit_code == 0
    assert "abide_connectome 0.1.0" in result.output
    assert "studies: demo, fedbn_table1" in result.output


def test_new_then_check(tmp_path: Path) -> None:
    """A hospital's own bundle is written and found fit."""
    data = write_synthetic_study(tmp_path / "data", sites=("EAST",))
    call = ["new", "abide_connectome", "--site", "EAST", "--data", str(data), "--out", str(tmp_path / "mine")]
    result = CliRunner().invoke(bundle, call)
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(bundle, ["check", str(tmp_path / "mine"), "--data", str(data / "EAST")])
    assert result.exit_code == 0, result.output
    assert "private under fedbn: 10 entries" in result.output
    assert result.output.endswith("fit for a federation\n")


def test_check_fails_on_a_problem(tmp_path: Path) -> None:
    """Something to mend gives exit code 1 and says what."""
    broken = copy_bundle(find_bundle("abide_connectome"), tmp_path / "b")
    (broken / "docs" / "README.md").unlink()
    result = CliRunner().invoke(bundle, ["check", str(broken)])
    assert result.exit_code == 1
    assert "problem: docs/README.md is missing" in result.output


def test_unknown_site_is_an_error_of_the_package(tmp_path: Path) -> None:
    """What main turns into a message and an exit code is raised as our own error."""
    data = write_synthetic_study(tmp_path / "data", sites=("EAST",))
    call = ["new", "abide_connectome", "--site", "NYU", "--data", str(data), "--out", str(tmp_path / "mine")]
    assert isinstance(CliRunner().invoke(bundle, call).exception, DataError)
