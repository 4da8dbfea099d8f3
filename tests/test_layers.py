"""The import table of ARCHITECTURE.md, read from the source."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monai_fedskew.engines import ENGINES

ROOT = Path(__file__).parent.parent / "monai_fedskew"
MAY_IMPORT = {
    "errors": set(),
    "core": {"errors"},
    "data": {"core", "errors"},
    "transforms": {"core", "errors"},
    "handlers": {"core", "errors"},
    "networks": {"core", "errors"},
    "sites": {"core", "errors", "transforms", "data"},
    "methods": {"core", "errors", "transforms", "handlers", "networks"},
    "federation": {"core", "errors", "sites", "data"},
    "engines": {"core", "errors", "sites", "federation", "methods"},
    "analysis": {"core", "errors", "sites", "networks"},
    "reports": {"core", "errors", "data"},
    "cli": {
        "core", "errors", "data", "transforms", "handlers", "networks", "sites", "methods", "federation", "engines",
        "analysis", "reports",
    },
}  # fmt: skip
ONLY_IN = {"opacus": {"transforms"}, "nilearn": {"data", "reports"}, "click": {"cli"}}
NO_MONAI = {"errors", "core", "data", "reports"}
BARE = {"monai_fedskew/core"}  # torch and the standard library only


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write the full name"
            module = node.module or ""
            if module == "monai_fedskew":
                yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    """Each file imports only from the layers below its own, and hosts only where they belong."""
    parts = path.relative_to(ROOT).parts
    here = parts[0] if len(parts) > 1 else path.stem
    for name, line in _imports(path):
        top, _, rest = name.partition(".")
        where = f"{path.relative_to(ROOT.parent)}:{line} imports {name}"
        assert here in ONLY_IN.get(top, {here}), f"{where}, which belongs in {ONLY_IN[top]}"
        assert not (top == "monai" and here in NO_MONAI), where
        if top == "monai_fedskew" and rest and here != "__init__":
            there = rest.partition(".")[0]
            assert there == here or there in MAY_IMPORT[here], where
        if here == "core":
            assert top in {"torch", "monai_fedskew"} or top in sys.stdlib_module_names, where


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_an_engine_is_one_file(engine: str) -> None:
    """What it stands on is imported in its file alone, and an engine takes nothing of methods but their parser."""
    package, own = ENGINES[engine][0], ROOT / "engines" / f"{engine}.py"
    users = {path for path in FILES for name, _ in _imports(path) if f"{name}.".startswith(f"{package}.")}
    assert users == ({own} if package else set())
    from_methods = [
        [alias.name for alias in node.names]
        for node in ast.walk(ast.parse(own.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("monai_fedskew.methods")
    ]
    assert all(names == ["parse_method"] for names in from_methods)


def test_the_package_loads_nothing_heavy_at_import() -> None:
    """`import monai_fedskew` in a fresh process loads no submodule and no host; a name is loaded when it is used."""
    code = (
        "import sys, monai_fedskew\n"
        "heavy = ('torch', 'monai', 'ignite', 'numpy', 'pandas', 'nilearn', 'click')\n"
        "print([name for name in sys.modules if name.startswith('monai_fedskew.') or name in heavy])\n"
        "print(monai_fedskew.FedSkewError.__module__)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == ["[]", "monai_fedskew.errors"]


def test_every_public_name_is_there() -> None:
    """The list of names, and where each is loaded from."""
    import monai_fedskew

    for name in monai_fedskew.__all__:
        assert getattr(monai_fedskew, name) is not None
    with pytest.raises(AttributeError, match="module 'monai_fedskew' has no attribute 'nothing'"):
        _ = monai_fedskew.nothing


def _targets() -> list[str]:
    """Dotted names of the package in strings, as configurations that are written name them."""
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"monai_fedskew(\.\w+)+", text):
                found.add(text)
    return sorted(found)


def test_exports_and_parts_name_targets() -> None:
    """The search below finds the ones there are."""
    assert "monai_fedskew.methods.adapted.adapted_network" in _targets()
    assert "monai_fedskew.transforms.NormaliseBatch" in _targets()


@pytest.mark.parametrize("target", _targets())
def test_a_target_named_in_a_string_exists(target: str) -> None:
    """What no import checks: an exported bundle would fail at the hospital."""
    module, _, name = target.rpartition(".")
    assert hasattr(importlib.import_module(module), name) or importlib.util.find_spec(target)
