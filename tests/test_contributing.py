"""The example of CONTRIBUTING.md works as it is printed."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from laws import assert_same, difference
from variants import Piece

from monai_fedskew.core.method import Method, compose, parse
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The code block, saved as the text says and imported."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    path = tmp_path_factory.mktemp("methods") / "clipped.py"
    path.write_text(blocks[0])
    spec = importlib.util.spec_from_file_location("clipped", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["clipped"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def table(example: ModuleType) -> dict[str, Callable[..., Method]]:
    """METHODS with the new row."""
    return {**METHODS, "clipped": example.clipped}


def test_it_passes_the_linter(example: ModuleType) -> None:
    """With the project's own settings, formatted as it is."""
    for call in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        command = [sys.executable, "-m", "ruff", *call, "--config", str(ROOT / "pyproject.toml"), str(example.__file__)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_passes_the_type_checker(example: ModuleType, tmp_path: Path) -> None:
    """Strictly, as `make types` does."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(example.__file__)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_number(example: ModuleType, sources: dict[str, Any]) -> None:
    """A gradient of (3, 4) has the norm 5; held to 0.5 it is (0.3, 0.4)."""
    site = sources["A"].open()
    weight = site.model[4].bias
    found = []

    def set_gradient() -> None:
        for parameter in site.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        weight.grad = torch.tensor([3.0, 4.0])

    site.add(Piece("before", ("correct",)), "correct", set_gradient)
    example.clipped(norm=0.5).parts[0].bind(site)
    site.optimizer.register_step_pre_hook(lambda *given: found.append(weight.grad.tolist()))
    site.train(1, 1, keep_optimizer=False)
    assert found == [pytest.approx([0.3, 0.4], abs=1e-5)] * 4


@pytest.mark.parametrize("norm", [0, -1, float("nan"), float("inf"), "0.5", True])
def test_it_refuses_wrong_values(norm: Any, example: ModuleType) -> None:
    """Method, parameter and value are named."""
    with pytest.raises(ConfigError, match="method clipped: norm="):
        example.clipped(norm)


def test_it_composes_and_runs(table: dict[str, Callable[..., Method]], sources: dict[str, Any]) -> None:
    """As text, with fedbn, in any order, one round: another model than fedbn's, and finite."""
    settings = Settings(rounds=1, choose="last")
    sites = {name: sources[name] for name in ("A", "B")}
    one = simulate(parse("clipped:norm=0.05+fedbn", table), sites, settings)
    assert_same(one, simulate(parse("fedbn+clipped:norm=0.05", table), sites, settings))
    assert difference(one.last, simulate(parse("fedbn", table), sites, settings).last) != ""
    assert all(torch.isfinite(value).all() for value in one.last.values() if value.is_floating_point())


def test_it_obeys_the_laws_of_a_method(table: dict[str, Callable[..., Method]]) -> None:
    """A value: prints, compares, composes with fedavg to itself, and says its paper."""
    method = parse("clipped", table)
    assert method == parse("clipped", table)
    assert compose(METHODS["fedavg"](), method).parts == method.parts
    assert "clipped" in repr(method)
    assert "\nPaper: " in (table["clipped"].__doc__ or "").replace("    ", "")
