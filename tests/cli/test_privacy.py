import pytest
from click.testing import CliRunner

from monai_fedskew.cli.main import fedskew
from monai_fedskew.errors import ConfigError


def run(*arguments: str) -> str:
    """What the command prints, tables without their frames."""
    result = CliRunner().invoke(fedskew, ["privacy", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return " ".join(result.output.replace("│", " ").split())


def test_cost_and_precision_are_printed() -> None:
    """Noise 1, delta 1e-5: epsilon 4.73; 100 subjects, 2 channels: 2 * 1 * sqrt(4) / 100 = 0.04, 4 % of clip."""
    text = run("--noise", "1", "--delta", "1e-5", "--channels", "2", "--subjects", "100")

    assert "1e-05 4.73" in text
    assert "100 0.04 4.0 usable" in text


def test_a_useless_table_is_called_so() -> None:
    """A connectome of 5995 edges from 100 subjects: more noise than signal."""
    assert "100 2.19 219.0 drowned in noise" in run("--noise", "1", "--channels", "5995", "--subjects", "100")


def test_several_releases_cost_more() -> None:
    """Four tables with noise 2 cost what one with noise 1 costs."""
    assert "1e-05 4.73" in run("--noise", "2", "--delta", "1e-5", "--releases", "4")


def test_wrong_values_are_refused() -> None:
    """Named with the value seen."""
    for option in ("--channels", "--subjects", "--releases"):
        for value in ("0", "1" + 400 * "0"):
            result = CliRunner().invoke(fedskew, ["privacy", "--noise", "1", option, value])
            assert (result.exit_code, f"'{option}': {value} is not in the range 1<=x<=" in result.output) == (2, True)
    with pytest.raises(ConfigError, match=r"noise=-1\.0 must be a finite number above 0"):
        run("--noise", "-1")
