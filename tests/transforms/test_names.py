import ast
from pathlib import Path

import pytest

import monai_fedskew.transforms as transforms

FOLDER = Path(transforms.__file__).parent


def test_every_public_name_is_there() -> None:
    """Those that need MONAI are loaded when they are used; an unknown one says so."""
    for name in transforms.__all__:
        assert getattr(transforms, name) is not None
    with pytest.raises(AttributeError, match=r"module 'monai_fedskew\.transforms' has no attribute 'Nothing'"):
        _ = transforms.Nothing


@pytest.mark.parametrize("prefix", ["", "Rand"])
def test_aliases_as_monai_has_them(prefix) -> None:
    """One class of three names."""
    names = ("SiteNormalized", "SiteNormalizeD", "SiteNormalizeDict")

    assert len({getattr(transforms, prefix + name) for name in names}) == 1


def test_importing_the_package_does_not_import_monai() -> None:
    """A server has torch alone: no file reached from the head of ``__init__`` has MONAI at its own head."""
    reached, waiting = set(), ["__init__"]
    while waiting:
        stem = waiting.pop()
        reached.add(stem)
        for node in ast.parse((FOLDER / f"{stem}.py").read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "monai"], f"{stem}.py:{node.lineno}"
            own = [name.rpartition(".")[2] for name in names if name.startswith("monai_fedskew.transforms.")]
            waiting += [name for name in own if name not in reached]

    assert {"calculator", "measure"} <= reached
    assert not {"site_normalize", "site_normalized"} & reached
