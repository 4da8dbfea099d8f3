from pathlib import Path

import pytest
import torch

from monai_fedskew.errors import DataError
from monai_fedskew.networks import ConnectomeMLP, load_weights, save_weights


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_weights_come_back(tmp_path: Path, name: str) -> None:
    """Every entry returns with its value, shape and dtype, the 0-d counter of batch norm included."""
    network = ConnectomeMLP(4)
    network(torch.randn(8, 4))
    other = load_weights(ConnectomeMLP(4), save_weights(network, tmp_path / "new" / name))
    for key, value in network.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])
    assert other.state_dict()["norm1.num_batches_tracked"].dtype == torch.int64


def test_absent_file_is_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error shows the resolved path and the option that says where the file is."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"no weights at {tmp_path}/model.safetensors.*--model_file"):
        load_weights(ConnectomeMLP(4), "model.safetensors")


def test_other_network_is_refused(tmp_path: Path) -> None:
    """Weights of another size are an error that names the keys; the network is left as it was."""
    path = save_weights(ConnectomeMLP(4), tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"1 tensors do not fit the network \(fc1.weight\)"):
        load_weights(ConnectomeMLP(5), path)


def test_other_file_types_are_refused(tmp_path: Path) -> None:
    """A pickle by another name is neither written nor read."""
    with pytest.raises(DataError, match=".safetensors or .pt"):
        save_weights(ConnectomeMLP(4), tmp_path / "model.pkl")


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_damaged_weights_are_named(tmp_path: Path, name: str) -> None:
    """Cut short, empty, text, and objects beside the tensors, which are not unpickled."""
    path = save_weights(ConnectomeMLP(4), tmp_path / name)
    for content in (path.read_bytes()[:100], b"", b"no weights"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{name}: damaged, or no weights alone"):
            load_weights(ConnectomeMLP(4), path)
    for held in (ConnectomeMLP(4), [torch.zeros(1)], {"fc1.weight": 3}):
        torch.save(held, tmp_path / "model.pt")
        with pytest.raises(DataError, match=r"model\.pt: (damaged, or no weights alone|holds something else)"):
            load_weights(ConnectomeMLP(4), tmp_path / "model.pt")
