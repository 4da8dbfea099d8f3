"""NVIDIA FLARE: an executor at each site, a controller at the server, and jobs that hold no code.

A site that FLARE does not list when a job starts is no part of that job, whenever it comes; the next job of the study,
sent with ``resume``, surveys it before its first round.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis import dxo
from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.flare_api.api_spec import JobNotFound, JobNotRunning, NoConnection
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.job_config.api import FedJob
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector

from monai_fedskew.errors import FedSkewError, RoundError, StateError
from monai_fedskew.federation.discretion import one_line, what_may_cross
from monai_fedskew.federation.exchange import Failure, Reply, Request
from monai_fedskew.federation.history import Entry
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.study import run_study
from monai_fedskew.federation.wire import Packed, pack, unpack_reply, unpack_request
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.server_file import read_runs_folder

__all__ = [
    "CLASSES",
    "ComponentPathAuthorizer",
    "DEFAULT_CLASS_ALLOW_LIST",
    "JobNotFound",
    "JobNotRunning",
    "NoConnection",
    "RESULT",
    "RoundController",
    "SiteExecutor",
    "UnsafeComponentError",
    "Workspace",
    "from_shareable",
    "job",
    "new_secure_session",
    "to_shareable",
]

CLASSES = {"site": f"{__name__}.SiteExecutor", "server": f"{__name__}.RoundController"}  # what a role's kit must allow
RESULT, _FILE = "fedskew", "fedskew.json"  # folder in a job's result; in a kit's local folder, what its owner decides
_PUBLISHED = ("run.json", "history.jsonl", "summary.json", "model.safetensors")
_REASON, _START_SECONDS = "fedskew_reason", 120  # of an answer; for a site's process to load torch and MONAI


class SiteExecutor(Executor):  # type: ignore[misc]  # nvflare ships no types
    """Answers the server's requests at one site, from the site's own ``local/fedskew.json``.

    Args:
        method: as text, e.g. ``fedrdn+fedbn``.
        study: name of the study.
        settings: what ``Settings.plain`` returns.
    """

    def __init__(self, method: str, study: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self.method, self.study, self.settings = method, study, settings
        self._resident: Any = None
        self._received: Shareable | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Do one task. An error's full text stays in the site's log.txt; see ``what_may_cross``."""
        self._received = shareable
        with _kept_here():
            try:
                request = unpack_request(from_shareable(shareable))
                if (request.task, request.study) != (task_name, self.study):
                    raise StateError(f"task {task_name} of study {self.study} holds {request.task} of {request.study}")
                if self._resident is None:
                    self._resident = self._settle(fl_ctx)
                return to_shareable(pack(self._resident.answer(request)))
            except Exception as error:  # whatever goes wrong at a site, the others go on
                self.log_exception(fl_ctx, f"{task_name}: {type(error).__name__}: {error}", fire_event=False)
                return make_reply(ReturnCode.EXECUTION_EXCEPTION, {_REASON: what_may_cross(error)})

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Free the site at the end of the job; show the kit's filters what was received."""
        if event_type == EventType.BEFORE_TASK_RESULT_FILTER:
            # FLARE 2.9 has cleared it by then: ConvertWeights and what filters differences would do nothing
            fl_ctx.set_prop(FLContextKey.TASK_DATA, self._received, private=True, sticky=False)
            # their noise comes from numpy's global stream, which training seeded with numbers the server knows
            np.random.seed(np.frombuffer(os.urandom(64), np.uint32))
        elif event_type == EventType.END_RUN and self._resident is not None:
            self._resident.close()
            self._resident = None

    def _settle(self, fl_ctx: FLContext) -> Any:
        from monai_fedskew.federation.resident import open_resident  # here: the server has no use for MONAI
        from monai_fedskew.sites.site_file import read_site_file

        site, workspace = fl_ctx.get_identity_name(), fl_ctx.get_engine().get_workspace()
        # FLARE's simulator copies one local folder to all sites, so there each has a file of its own name
        named = Path(workspace.get_file_path_in_site_config(f"fedskew.{site}.json"))
        path = named if named.is_file() else Path(workspace.get_file_path_in_site_config(_FILE))
        return open_resident(read_site_file(path, site), parse_method(self.method), Settings(**self.settings))


class RoundController(Controller):  # type: ignore[misc]
    """Runs a study at the server; its RUN folder lies under ``runs`` of the server's own ``local/fedskew.json``.

    FLARE removes a job's folder when the job does not end well; RUN stays, and the next job resumes from it.

    Args:
        method: as text.
        study: name of the study, and of its folder.
        settings: what ``Settings.plain`` returns.
        task_timeout: seconds until a site that does not answer is left out of a round; 0 waits for ever.
        resume: go on after the last committed round.
    """

    def __init__(
        self, method: str, study: str, settings: dict[str, Any], task_timeout: int = 0, resume: bool = False
    ) -> None:
        super().__init__(task_check_period=0.05)
        self.method, self.study, self.settings = method, study, settings
        self.task_timeout, self.resume = task_timeout, resume
        self._heard: set[str] = set()  # have asked for work in this job
        self._lost: set[str] = set()  # let a task time out and have not been heard of since
        self._progress: dict[str, Any] = {}

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing; all happens in ``control_flow``."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing; all is on disk after each round."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the study; what ends it goes to the job's error and to ``failure.txt`` in its result."""
        workspace = fl_ctx.get_engine().get_workspace()
        result = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / RESULT
        result.mkdir(parents=True, exist_ok=True)
        try:
            settings = Settings(**self.settings)
            run = read_runs_folder(Path(workspace.get_file_path_in_site_config(_FILE))) / self.study

            def on_round(round: int, entries: Sequence[Entry]) -> None:
                self._progress = {"round": round, "rounds": settings.rounds}
                self.log_info(fl_ctx, f"study {self.study}: round {round} of {settings.rounds} is committed")

            run_study(
                parse_method(self.method),
                settings,
                _Transport(self, fl_ctx, abort_signal),
                study=self.study,
                run=run,
                resume=self.resume,
                engine="nvflare",
                on_round=on_round,
            )
            for name in _PUBLISHED:
                shutil.copyfile(run / name, result / name)
        except Exception as error:  # the server's own process must end the job, whatever it was
            reason = f"{'' if isinstance(error, FedSkewError) else type(error).__name__ + ': '}{error}"
            (result / "failure.txt").write_text(reason + "\n")
            self.log_exception(fl_ctx, f"study {self.study}: {reason}", fire_event=False)
            self.system_panic(reason, fl_ctx)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Hear of a site that asks for work, and say how far the study is."""
        if event_type == EventType.BEFORE_PROCESS_TASK_REQUEST and (peer := fl_ctx.get_peer_context()):
            self._heard.add(peer.get_identity_name())
            self._lost.discard(peer.get_identity_name())
        elif event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
            if isinstance(collector, GroupInfoCollector):
                collector.add_info(RESULT, self._progress)


class _Transport:
    """A task a site, side by side."""

    def __init__(self, controller: RoundController, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._controller, self._fl_ctx, self._abort = controller, fl_ctx, abort_signal

    def present(self) -> frozenset[str]:
        """The job's sites, without those that let a task time out and have not asked for work since.

        A site works on one task at a time and asks for the next when it is done: one that is lost costs one timeout,
        and one that is slow comes back by itself.
        """
        control = self._controller
        names = {client.name for client in self._fl_ctx.get_engine().get_clients()} - control._lost
        return frozenset(name for name in names if not control.get_client_disconnect_time(name))

    def ask(self, requests: Mapping[str, Request]) -> dict[str, Reply | Failure]:
        """Send, and wait for all; see Transport."""
        results: dict[str, Shareable] = {}

        def received(client_task: Any, fl_ctx: FLContext) -> None:  # in a thread that holds FLARE's locks: be quick
            results[client_task.client.name] = client_task.result
            client_task.result = None

        control, tasks = self._controller, {}
        for site, request in requests.items():
            # FLARE counts from here on, also while the site's process still loads what it needs
            more = 0 if site in control._heard or not control.task_timeout else _START_SECONDS
            limit, data = control.task_timeout + more, to_shareable(pack(request))
            tasks[site] = Task(request.task, data, timeout=limit, result_received_cb=received)
            control.send(tasks[site], self._fl_ctx, targets=[site])
        while any(task.completion_status is None for task in tasks.values()):
            if self._abort.triggered:
                control.cancel_all_tasks()
                raise RoundError("FLARE ended the job (aborted, or a process died); send it with --resume")
            time.sleep(0.02)
        return {site: self._answer(site, task, results.get(site)) for site, task in tasks.items()}

    def _answer(self, site: str, task: Task, result: Shareable | None) -> Reply | Failure:
        if result is None:
            if task.completion_status == TaskCompletionStatus.TIMEOUT:
                self._controller._lost.add(site)
                return Failure(f"no answer within {task.timeout} s")
            return Failure(f"no answer: FLARE ended the task ({task.completion_status.value})")
        code = result.get_return_code()
        if code != ReturnCode.OK:
            told = one_line(str(result.get_header(_REASON, "")))
            return Failure(told or f"FLARE's return code {code}; the site's log says why")
        try:
            return unpack_reply(from_shareable(result))
        except StateError as error:
            return Failure(str(error))


def job(study: str, method: str, settings: Settings, *, task_timeout: int = 0, resume: bool = False) -> FedJob:
    """Return a job of configuration only: every site runs what it has installed.

    Args:
        study: name of the study and of the job.
        method: as text.
        settings: the same at all sites; FLARE starts the job when ``min_sites`` are connected, with all that are.
        task_timeout: seconds a site may take for a task, 0 for any time.
        resume: go on after the last committed round.
    """
    about = {"monai_fedskew": version("monai-fedskew"), "nvflare": version("nvflare")}
    made = FedJob(name=study, min_clients=settings.min_sites, meta_props={"fedskew": about})
    made.to_server(RoundController(method, study, settings.plain(), task_timeout, resume))
    made.to_server({"server": {"task_request_interval": 0.2}})  # seconds; FLARE's own 2 would be most of a small round
    made.to_clients(SiteExecutor(method, study, settings.plain()), tasks=["survey", "fit", "evaluate", "finish"])
    made.set_app_packages(["monai_fedskew"])  # installed everywhere; without this FLARE would copy its source
    return made


def to_shareable(packed: Packed) -> Shareable:
    """Return a message as FLARE sends it: weights, which the filters of a kit see, and beside them what they do not."""
    meta = {"fedskew": packed.plain, "aux": dict(packed.aux)}
    return dxo.DXO(dxo.DataKind.WEIGHTS, data=dict(packed.tensors), meta=meta).to_shareable()


def from_shareable(shareable: Shareable) -> Packed:
    """Return what ``to_shareable`` was given; StateError for any other message."""
    try:
        found = dxo.from_shareable(shareable)
        if found.data_kind != dxo.DataKind.WEIGHTS:  # differences would be averaged as weights
            raise ValueError(f"weights but with {found.data_kind}; let the filters of the kit turn them back")
        return Packed(found.data, found.meta["aux"], found.meta["fedskew"])
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"message without {error}; use one version of monai-fedskew everywhere") from error


@contextmanager
def _kept_here() -> Iterator[None]:
    """Keep what this thread logs out of error_log.txt, which FLARE's kits stream to the server while a job runs."""
    here = threading.get_ident()

    def is_elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    streamed = [handler for handler in logging.root.handlers if handler.level >= logging.ERROR]
    for handler in streamed:
        handler.addFilter(is_elsewhere)
    try:
        yield
    finally:
        for handler in streamed:
            handler.removeFilter(is_elsewhere)
