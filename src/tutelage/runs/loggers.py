"""Loggers of metrics besides the run folder: TensorBoard, Weights & Biases, MLflow.

`metrics.jsonl` is the run's own record and is always written; the console is the live display
(`progress.py`). Loggers take the same lines with the run's tick as step, so cold start, training
and control lie on one axis; metrics of a phase other than `rl` are prefixed by its name. A resumed
run has neither gaps nor duplicates: a logger that keeps its record in the run folder writes it
again from `metrics.jsonl`, one with a remote record asks for its last tick. Packages are imported
on use, and missing ones are reported before the run.
"""

from __future__ import annotations

import importlib.util
import json
import netrc
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from tutelage.errors import MissingExtraError, RunError
from tutelage.runs.folder import RunFolder, write_json
from tutelage.runs.kinds import RunHeader
from tutelage.runs.progress import Progress

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
"""Package of each logger; the extra has the logger's name."""

PROJECT = "tutelage"
"""Default name of a project or experiment."""

OWN_NAMES = ("rl", "phase1", "phase2", "before", "after")
"""Phases whose metrics have no prefix: training, evaluations before and after it, and the phases of
the planner."""

WANDB_HOST = "api.wandb.ai"


class Logger(Protocol):
    """Interface of metric loggers. Every line is logged once, in the order of ticks."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of `metrics.jsonl`: `phase`, `step`, `tick`, and numbers by name."""
        ...

    def close(self) -> None:
        """Flush and close the logger. A resumed run may open it again."""
        ...


def check_loggers(names: Sequence[str]) -> None:
    """Raise `MissingExtraError` if the package of a logger is not installed."""
    for name in names:
        package = PACKAGES.get(name)
        if package is not None and importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"trainer.logger={name!r} needs the package {package!r}, which is not installed; "
                f"install it with: pip install 'tutelage[{name}]', or remove {name!r}"
            )


@contextmanager
def open_loggers(head: RunHeader, folder: RunFolder, progress: Progress) -> Generator[list[Logger]]:
    """Open the configured loggers except console and jsonl, and close them at the end.

    They contain the run's earlier lines. Raises `RunError` if a logger cannot be reached.
    """
    makers = {"tensorboard": _TensorBoardLogger, "wandb": _open_wandb, "mlflow": _MLflowLogger}
    with ExitStack() as stack:
        loggers: list[Logger] = []
        for name in dict.fromkeys(head.loggers):
            if name in makers:
                logger = makers[name](head, folder, progress)
                stack.callback(logger.close)
                loggers.append(logger)
        yield loggers


def select_numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric metrics of a line, with the phase as a prefix of their names."""
    front = "" if line["phase"] in OWN_NAMES else f"{line['phase']}/"
    skipped = ("phase", "step", "tick")
    return {f"{front}{k}": float(v) for k, v in line.items() if k not in skipped}


# ---------------------------------------------------------------- TensorBoard


class _TensorBoardLogger:
    """Logger to TensorBoard event files, which are rewritten at the start of each process."""

    def __init__(self, head: RunHeader, folder: RunFolder, progress: Progress) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        path = folder.path / "tensorboard"
        shutil.rmtree(path, ignore_errors=True)
        self._writer: Any = SummaryWriter(str(path))
        for line in folder.read_metrics():
            self.log(line)
        self._writer.flush()

    def log(self, line: Mapping[str, Any]) -> None:
        """Log one scalar per metric."""
        for name, value in select_numbers(line).items():
            self._writer.add_scalar(name, value, line["tick"])

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


# ---------------------------------------------------------------- Weights & Biases


class _WandbLogger:
    """Logger to Weights & Biases, offline if there is no login or network.

    An offline record lies in the run folder and is written again by each process with the run's
    identifier, so that `wandb sync` makes one run of it. Online the server knows the last step.
    """

    def __init__(
        self, head: RunHeader, folder: RunFolder, identifier: str, *, offline: bool
    ) -> None:
        import wandb

        place = folder.path / "wandb"
        if offline:
            shutil.rmtree(place, ignore_errors=True)
        place.mkdir(exist_ok=True)
        api: Any = wandb
        self._run: Any = api.init(
            mode="offline" if offline else "online",
            dir=str(folder.path),
            project=head.project or PROJECT,
            name=head.title or folder.name,
            id=identifier,
            resume="allow",
            config=head.keys,
            settings=api.Settings(
                console="off", silent=True, init_timeout=30, x_disable_stats=True
            ),
        )
        self._next = 0 if offline else int(self._run.step)
        for line in folder.read_metrics():
            self.log(line)

    def log(self, line: Mapping[str, Any]) -> None:
        """Log all metrics of a tick in one call."""
        if line["tick"] >= self._next:
            self._run.log(select_numbers(line), step=line["tick"])

    def close(self) -> None:
        """Finish the run and wait until all metrics are written or sent."""
        self._run.finish()


def _open_wandb(head: RunHeader, folder: RunFolder, progress: Progress) -> Logger:
    identifier = _get_identifier(folder, "wandb", lambda: os.urandom(4).hex())
    if os.environ.get("WANDB_MODE", "") != "offline" and _has_wandb_login():
        try:
            return _WandbLogger(head, folder, identifier, offline=False)
        except Exception as error:  # whatever its client makes of a missing network
            import wandb

            reason = str(error).partition("\n")[0] or type(error).__name__
            api: Any = wandb
            api.teardown()  # which still holds the identifier of the failed start
    else:
        reason = "no login"
    progress.note(
        f"wandb: {reason}, so it logs offline; upload it later with: wandb sync "
        f"{folder.path}/wandb/offline-run-*"
    )
    return _WandbLogger(head, folder, identifier, offline=True)


def _has_wandb_login() -> bool:
    """Return True if an API key is set in the environment or in the netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False


# ---------------------------------------------------------------- MLflow


class _MLflowLogger:
    """Logger to the MLflow server at `MLFLOW_TRACKING_URI`, or to files in the run folder."""

    def __init__(self, head: RunHeader, folder: RunFolder, progress: Progress) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            # Its file store is all that the small package has; it has to be asked for by name.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (folder.path / "mlflow").resolve().as_uri()
        try:
            self._client: Any = MlflowClient(tracking_uri=uri)
            self._run = _get_identifier(folder, "mlflow", lambda: self._create(head, folder))
            seen = self._client.get_metric_history(self._run, "tick")
        except (MlflowException, ImportError) as error:
            raise RunError(
                f"cannot use MLflow at {uri!r}: {error}; fix MLFLOW_TRACKING_URI, or remove "
                "'mlflow' from trainer.logger"
            ) from error
        self._next = 1 + max((int(m.step) for m in seen), default=-1)
        for line in folder.read_metrics():
            self.log(line)

    def _create(self, head: RunHeader, folder: RunFolder) -> str:
        name = head.project or PROJECT
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        title = head.title or folder.name
        made = self._client.create_run(experiment, run_name=title).info.run_id
        for section, values in head.keys.items():
            self._client.log_param(made, section, json.dumps(values))
        return made

    def log(self, line: Mapping[str, Any]) -> None:
        """Log all metrics of a tick in one call, followed by the tick to mark it as complete."""
        from mlflow.entities import Metric

        tick = int(line["tick"])
        if tick < self._next:
            return
        values = select_numbers(line)
        self._client.log_batch(
            self._run, [Metric(k, v, 0, tick) for k, v in (*values.items(), ("tick", float(tick)))]
        )

    def close(self) -> None:
        """Mark the MLflow run as ended."""
        self._client.set_terminated(self._run)


def _get_identifier(folder: RunFolder, name: str, create: Callable[[], str]) -> str:
    """Return the stored identifier of the run for a logger, or create and store one."""
    note = folder.path / f"{name}.json"
    if note.is_file():
        return str(json.loads(note.read_text())["run"])
    made = create()
    write_json(note, {"run": made})
    return made
