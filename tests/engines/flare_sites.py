"""Sites that FLARE's processes build for the tests: small enough to compute by hand, and one that misbehaves."""

import time
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from variants import NumberSite

from monai_fedskew.engines.nvflare import SiteExecutor
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.memory_store import MemoryStore
from monai_fedskew.federation.resident import Resident
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.server_file import read_runs_folder

_FILE = "fedskew.json"  # the server's, which the simulator copies to all
_SITES = {
    "A": NumberSite("A", 10, 1.0),
    "B": NumberSite("B", 30, 2.0),
    "C": NumberSite("C", 60, 3.0, fails_in=(2,)),
}


class NumberExecutor(SiteExecutor):  # type: ignore[misc]  # nvflare ships no types
    """Case 33's sites; from round 4 on what C sends does not count: late, under another's name, empty, then nothing."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        """Answer as a site does, C as it likes."""
        reply = super().execute(task_name, shareable, fl_ctx, abort_signal)
        if fl_ctx.get_identity_name() != "C" or task_name != "fit":
            return reply
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 4:
            runs = read_runs_folder(Path(fl_ctx.get_engine().get_workspace().get_file_path_in_site_config(_FILE)))
            while (checkpoint.latest(runs / self.study) or 0) < 6:
                time.sleep(0.05)
        elif self.calls == 5:
            dxo = from_shareable(reply)
            dxo.meta["fedskew"] = dxo.meta["fedskew"].replace('"site": "C"', '"site": "A"')
            return dxo.update_shareable(reply)
        elif self.calls == 6:
            return Shareable()
        elif self.calls > 6:
            raise RuntimeError("past the executor")
        return reply

    def _settle(self, fl_ctx: Any) -> Resident:
        site = _SITES[fl_ctx.get_identity_name()]
        return Resident(parse_method(self.method), site, Settings(**self.settings), MemoryStore())
