"""Sites that FLARE's processes build for the tests: small enough to compute by hand, and one that misbehaves."""

import json
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

_SITES = {
    "A": NumberSite("A", 10, 1.0),
    "B": NumberSite("B", 30, 2.0),
    "C": NumberSite("C", 60, 3.0, fails_in=(2,)),
    "D": NumberSite("D", 900, 9.0),
}


class NumberExecutor(SiteExecutor):  # type: ignore[misc]  # nvflare ships no types
    """Case 33's sites; what D sends never counts: late, under another's name, empty, then nothing."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        """Answer as a site does, D as it likes."""
        reply = super().execute(task_name, shareable, fl_ctx, abort_signal)
        if fl_ctx.get_identity_name() != "D" or task_name != "fit":
            return reply
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 1:
            run = Path(json.loads(self._own_file(fl_ctx).read_text())["runs"]) / self.study
            while (checkpoint.latest(run) or 0) < 3:
                time.sleep(0.05)
        elif self.calls == 2:
            dxo = from_shareable(reply)
            dxo.meta["fedskew"] = dxo.meta["fedskew"].replace('"site": "D"', '"site": "A"')
            return dxo.update_shareable(reply)
        elif self.calls > 3:
            raise RuntimeError("past the executor")
        return Shareable() if self.calls == 3 else reply

    def _settle(self, fl_ctx: Any) -> Resident:
        site = _SITES[fl_ctx.get_identity_name()]
        return Resident(parse_method(self.method), site, Settings(**self.settings), MemoryStore())

    def _own_file(self, fl_ctx: Any) -> Path:
        return Path(fl_ctx.get_engine().get_workspace().get_file_path_in_site_config("fedskew.json"))
