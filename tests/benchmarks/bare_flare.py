"""A FLARE job without monai_fedskew's federation: an executor that trains a bundle, a controller that averages."""

from typing import Any

from by_hand import HandTrained, average, first_model, save
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.job_config.api import FedJob

__all__ = ["Averager", "Trainer", "job"]


class Trainer(Executor):  # type: ignore[misc]
    """Trains the received model at one site.

    Args:
        bundle: folder of the bundle.
        data: folder that holds a folder of data a site.
    """

    def __init__(self, bundle: str, data: str) -> None:
        super().__init__()
        self.bundle, self.data = bundle, data
        self._site: HandTrained | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Score, train, return all of the model."""
        if self._site is None:
            self._site = HandTrained(self.bundle, f"{self.data}/{fl_ctx.get_identity_name()}")
        model, samples, scores = self._site.do_round(from_shareable(shareable).data)
        return DXO(DataKind.WEIGHTS, data=model, meta={"samples": samples, "scores": scores}).to_shareable()


class Averager(Controller):  # type: ignore[misc]
    """Averages what the sites return.

    Args:
        bundle: folder of the bundle, for the first model.
        sites: how many.
        rounds: how many.
        out: folder of the averages.
    """

    def __init__(self, bundle: str, sites: int, rounds: int, out: str) -> None:
        super().__init__(task_check_period=0.05)
        self.bundle, self.sites, self.rounds, self.out = bundle, sites, rounds, out

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run all rounds."""
        model = first_model(self.bundle)
        for number in range(1, self.rounds + 1):
            results: dict[str, DXO] = {}

            def received(client_task: Any, fl_ctx: FLContext, results: dict[str, DXO] = results) -> None:
                client: Client = client_task.client
                results[client.name] = from_shareable(client_task.result)

            task = Task("train", DXO(DataKind.WEIGHTS, data=model).to_shareable(), result_received_cb=received)
            self.broadcast_and_wait(task, fl_ctx, min_responses=self.sites, abort_signal=abort_signal)
            found = [results[name] for name in sorted(results)]
            model = average([dxo.data for dxo in found], [dxo.meta["samples"] for dxo in found])
            save(self.out, number, model)


def job(name: str, bundle: str, data: str, *, sites: int, rounds: int, out: str) -> FedJob:
    """Return the job; like ours it holds no code and has the server tell its sites to ask every 0.2 s."""
    made = FedJob(name=name, min_clients=sites)
    made.to_server(Averager(bundle, sites, rounds, out))
    made.to_server({"server": {"task_request_interval": 0.2}})
    made.to_clients(Trainer(bundle, data), tasks=["train"])
    made.set_app_packages(["bare_flare"])
    return made
