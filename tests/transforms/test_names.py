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


def test_monai_is_imported_where_no_server_looks() -> None:
    """At the head of the two files of its transforms, which nothing else imports at its head."""
    needing = set()
    for file in FOLDER.glob("*.py"):
        heads = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [getattr(node, "module", None) or node.names[0].name for node in heads]
        if any(name.split(".")[0] == "monai" or ".site_normalize" in name for name in names):
            needing.add(file.stem)

    assert needing == {"site_normalize", "site_normalized"}
