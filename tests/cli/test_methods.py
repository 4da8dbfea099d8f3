import subprocess
import sys

import pytest
from click.testing import CliRunner

from monai_fedskew.cli.main import fedskew
from monai_fedskew.cli.methods import describe
from monai_fedskew.methods import METHODS


def test_every_method_parameter_and_paper_is_listed() -> None:
    """Read off the factories: nothing can be forgotten."""
    result = CliRunner().invoke(fedskew, ["methods"], catch_exceptions=False)

    assert result.exit_code == 0
    words = " ".join(result.output.replace("│", " ").split())
    for name, factory in METHODS.items():
        _, paper, parameters = describe(factory)
        assert f" {name} " in words
        assert paper.split("arXiv ")[1].split()[0].rstrip(".,;") in words
        assert all(parameter.split(" ")[0] in words for parameter in parameters)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedprox", "mu=0.01 (number): weight of the term, 0 or more"),
        ("fedbn", "norms=batch (batch | all): "),
        ("fedrdn", "std=none (image | pooled | none): "),
        ("silobn", "allow_none=false (true | false): "),
        ("sitenorm", "ddof=1 (integer): 0 or 1"),
    ],
)
def test_parameters_say_default_type_and_range(name, expected) -> None:
    """From signature and docstring."""
    assert any(parameter.startswith(expected) for parameter in describe(METHODS[name])[2])


def test_help_loads_no_network_library() -> None:
    """Help is instant."""
    code = (
        "import sys; from click.testing import CliRunner; from monai_fedskew.cli.methods import methods; "
        "assert CliRunner().invoke(methods, ['--help']).exit_code == 0; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'monai', 'rich.table')))"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
