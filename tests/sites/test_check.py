from pathlib import Path

import pytest

from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.errors import ConfigError
from monai_fedskew.sites.check import check_bundle
from monai_fedskew.sites.locate import find_bundle
from monai_fedskew.sites.scaffold import copy_bundle, new_bundle


def test_shipped_bundle_is_fit() -> None:
    """Without data the network is built and tried: two batch norm layers, ten entries private, six shared."""
    report = check_bundle(find_bundle("abide_connectome"))
    assert report.problems == ()
    assert ("batch norm layers", "2") in report.facts
    assert (len(report.shared), len(report.private)) == (6, 10)


def test_own_bundle_is_opened_with_its_data(tmp_path: Path) -> None:
    """With data the engines are built: no property is missing or wrong, and they share one network."""
    data = write_synthetic_study(tmp_path / "data", sites=("EAST",))
    out = new_bundle("abide_connectome", site="EAST", data=data, out=tmp_path / "mine")
    report = check_bundle(out, data / "EAST")
    assert report.problems == ()
    assert dict(report.facts)["site"] == "EAST: 84 training samples of 14 subjects, 12 for validation"
    assert dict(report.facts)["engines"] == "trainer and evaluator share one network"


def test_missing_pieces_are_named(tmp_path: Path) -> None:
    """A lost file is a problem; a network without batch norm is a fact, as fedavg runs on it."""
    bundle = copy_bundle(find_bundle("abide_connectome"), tmp_path / "b")
    (bundle / "LICENSE").unlink()
    train = bundle / "configs" / "train.yaml"
    text = train.read_text()
    start = text.index("network_def:")
    end = text.index("network:", start)
    plain = "network_def: {_target_: torch.nn.Linear, in_features: 5995, out_features: 2}\n"
    train.write_text(text[:start] + plain + text[end:])
    report = check_bundle(bundle)
    assert report.problems == ("LICENSE is missing",)
    assert dict(report.facts)["batch norm layers"].startswith("0: fedbn and silobn have nothing to keep")


def test_other_feature_count_is_an_error(tmp_path: Path) -> None:
    """Data of another parcellation are refused with both numbers, not by a layer deep inside."""
    data = write_synthetic_study(tmp_path, sites=("EAST",))
    with pytest.raises(ConfigError, match="66 features, the network takes 5995"):
        check_bundle(find_bundle("abide_connectome"), data / "EAST")
