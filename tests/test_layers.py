"""The import table of ARCHITECTURE.md, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    "federation": {"core", "errors", "sites"},
    "engines": {"core", "errors", "sites", "federation"},
    "analysis": {"core", "errors", "sites"},
    "reports": {"core", "errors", "data"},
    "cli": {
        "core", "errors", "data", "transforms", "handlers", "networks", "sites", "methods", "federation", "engines",
        "analysis", "reports",
    },
}  # fmt: skip
ONLY_IN = {"nvflare": {"engines"}, "flwr": {"engines"}, "nilearn": {"data", "reports"}, "click": {"cli"}}
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
            assert top in {"torch", "monai_fedskew"} or top in __import__("sys").stdlib_module_names, where


def test_the_package_imports_nothing_at_import() -> None:
    """`import monai_fedskew` loads no submodule and no host."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__getattr__"]
