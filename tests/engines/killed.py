"""Run the command line and kill this very process, SIGKILL, in round 3: after its commit, or inside it."""

import os
import signal
import sys
from typing import Any

from monai_fedskew.cli.main import main
from monai_fedskew.federation import checkpoint


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _install(moment: str) -> None:
    commit, save = checkpoint.commit, checkpoint.save_file

    def committing(run: Any, server: Any, *args: Any, **kwargs: Any) -> None:
        if moment == "in a checkpoint" and server.round == 3:

            def dying(tensors: Any, path: Any) -> None:
                if "sites" in str(path):
                    path.write_bytes(b"half of a fi")
                    _die()
                save(tensors, path)

            checkpoint.save_file = dying
        commit(run, server, *args, **kwargs)
        if moment == "between rounds" and server.round == 3:
            _die()

    checkpoint.commit = committing


if __name__ == "__main__":
    _install(os.environ["FEDSKEW_KILL"])
    main(sys.argv[1:])
