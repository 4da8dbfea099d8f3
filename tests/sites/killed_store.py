"""A process that is killed in the middle of writing private state; started by test_store.py."""

import os
import signal
import sys
from pathlib import Path

import torch

from monai_fedskew.core.private import StateKey
from monai_fedskew.sites import store as module


def main(root: Path, when: str) -> None:
    """Write round 1 and die in round 2: before its file is whole, or when it is and before old rounds go."""
    store, key, inner = module.SiteStore(root), StateKey("study", "run", "NYU", "a" * 64), module._commit
    store.write(key, 1, {"model/w": torch.full((4,), 1.0)}, keep=())

    def commit(partial: Path, target: Path) -> None:
        if target.name == "2.safetensors" and when == "before":
            partial.write_bytes(partial.read_bytes()[:20])
            os.kill(os.getpid(), signal.SIGKILL)
        inner(partial, target)
        if target.name == "2.safetensors":
            os.kill(os.getpid(), signal.SIGKILL)

    module._commit = commit
    store.write(key, 2, {"model/w": torch.full((4,), 2.0)}, keep=())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
