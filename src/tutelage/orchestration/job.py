"""Run the phases of a planner in a run folder, and go on with one that was stopped.

    config.json                  the request
    metrics.jsonl                a line an epoch (phase1) and an update (phase2)
    checkpoints/phase1_best.pth  the planner; checkpoint_best.pth is the same file's content
    checkpoints/phase1_last.pth  where training stands, until it ends
    phase2/                      what phase 2 leaves
    predictions.jsonl            the plans of the test set
    result.json, report.html     the outcome

A checkpoint is written after each epoch, so a run killed at any moment goes on bit for bit.
`setup.py` reads the data, `evaluation/results.py` measures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch

from tutelage.config import RunConfig
from tutelage.errors import DataError, RunError
from tutelage.orchestration.evaluation.results import evaluate, prediction_rows
from tutelage.orchestration.pages import write_report
from tutelage.orchestration.planner import saving
from tutelage.orchestration.planner.fit import Fitting
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.orchestration.planner.settings import Settings
from tutelage.orchestration.setup import Request, Sets, check, read_request, read_sets
from tutelage.runs.folder import RunFolder, append_json, keep_lines, locked, write_json, write_text
from tutelage.runs.loggers import Logger, check_loggers, open_loggers
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree

PHASE1, PHASE2 = "phase1", "phase2"
LAST = "phase1_last.pth"


def run(request: Request, folder: RunFolder, progress: Progress) -> dict[str, Any]:
    """Run a request in a folder that is new, or go on with the same request where it was left.

    Returns the content of `result.json`. Raises `ConfigError`, `DataError` or `RunError` before
    anything is trained.
    """
    settings = check(request)
    check_loggers(settings.training.logger)
    with locked(folder):
        if folder.config.is_file():
            _same(request, folder)
            return _resume(folder, progress)
        sets = (
            None
            if request.phase == "2"
            else read_sets(request, settings.training.phase1_supervised)
        )
        check_against(request, sets)
        write_json(folder.config, request.to_json())
        return _work(request, settings, folder, progress, sets)


def resume(folder: RunFolder, progress: Progress) -> dict[str, Any]:
    """Go on with the run of a folder; a finished one gives its result again."""
    with locked(folder):
        return _resume(folder, progress)


def _resume(folder: RunFolder, progress: Progress) -> dict[str, Any]:
    finished = folder.read_result()
    if finished is not None and finished.get("status") == "finished":
        progress.note("the run is finished; there is nothing to resume")
        return finished
    request = read_request(folder)
    settings = check(request)
    sets = None if request.phase == "2" else read_sets(request, settings.training.phase1_supervised)
    return _work(request, settings, folder, progress, sets)


def _same(request: Request, folder: RunFolder) -> None:
    if read_request(folder) != request:
        raise RunError(
            f"the run in {str(folder.path)!r} was asked for otherwise; choose another --output, or "
            f"go on with it as it is: tutelage resume {folder.path}"
        )


def check_against(request: Request, sets: Sets | None) -> None:
    """Refuse an older planner that cannot be scored, before anything is trained."""
    if request.against is None or sets is None:
        return
    if not sets.test:
        raise DataError(
            f"--against {request.against!r} needs workflows to compare on, and there are too few "
            f"to hold some back; give --test FILE"
        )
    saving.load_planner(request.against)


@contextmanager
def one_thread() -> Generator[None]:
    """The operations are so small that several threads would wait more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _LoggerConfig:
    """What loggers want to know of a run, in the shape that they know."""

    def __init__(self, request: Request, settings: Settings) -> None:
        self.trainer = _TrainerPart(settings.training.logger, settings.training.project_name)
        self._request = request

    def model_dump(self, mode: str = "json") -> dict[str, Any]:
        """The request as plain data."""
        return self._request.to_json()["config"]


class _TrainerPart:
    def __init__(self, logger: tuple[str, ...], project_name: str) -> None:
        self.logger, self.project_name = logger, project_name
        self.experiment_name: str | None = None


def _work(
    request: Request,
    settings: Settings,
    folder: RunFolder,
    progress: Progress,
    sets: Sets | None,
) -> dict[str, Any]:
    began = time.monotonic()
    progress.start("Planner", {**({} if sets is None else sets.facts), "run": str(folder.path)})
    state = _read_last(folder)
    keep_lines(folder.metrics, _lines_done(folder, state))
    config = cast("RunConfig", _LoggerConfig(request, settings))
    result: dict[str, Any] = {
        "recipe": "planner",
        "phase": request.phase,
        "seed": request.seed,
    }
    with one_thread(), open_loggers(config, folder, progress) as loggers:
        if sets is not None:
            result[PHASE1] = _phase1(request, settings, folder, progress, sets, state, loggers)
        if request.phase != "1":
            result[PHASE2] = _phase2(request, settings, folder, progress, loggers)
    result |= {"status": "finished", "wall_seconds": time.monotonic() - began}
    write_json(folder.result, result)
    write_report(folder)
    return result


# ------------------------------------------------------------------ phase 1


def _phase1(
    request: Request,
    settings: Settings,
    folder: RunFolder,
    progress: Progress,
    sets: Sets,
    state: Mapping[str, Any] | None,
    loggers: list[Logger],
) -> dict[str, Any]:
    done = folder.path / "phase1.json"
    if done.is_file() and (folder.checkpoints / saving.PHASE1).is_file():
        return dict(json.loads(done.read_text(encoding="utf-8")))
    phase = settings.training.phase1_supervised
    seeds = SeedTree(request.seed).child("planner", PHASE1)
    fitting = Fitting(sets.train, sets.held_out, sets.catalog, phase, seeds)
    if state is not None:
        fitting.restore(dict(state["fit"]))
        progress.note(f"resumed at epoch {fitting.at.epoch} of {fitting.at.stage}")
    tick = 0 if state is None else int(state["tick"])
    shown = ""
    while not fitting.done:
        stage = fitting.at.stage
        if stage != shown:
            search = stage == "search"
            name = "Phase 1: learning to plan" if search else "Phase 1: going on with all"
            progress.phase(name, steps=fitting.at.epoch + fitting.epochs_left)
            shown = stage
        metrics = fitting.epoch()
        tick += 1
        line = {
            "phase": PHASE1,
            "step": tick,
            "tick": tick,
            "refit": int(stage == "refit"),
            **metrics,
        }
        append_json(folder.metrics, line)
        for logger in loggers:
            logger.log(line)
        saving.write(folder.checkpoints / LAST, {"fit": fitting.state(), "tick": tick})
        done_epochs = tick if stage == "search" else fitting.at.epoch or fitting.at.best_epoch
        progress.step(done_epochs, metrics)
    _keep(folder, fitting)
    result = _measure(request, folder, progress, fitting, sets)
    write_json(done, result)
    (folder.checkpoints / LAST).unlink(missing_ok=True)
    return result


def _keep(folder: RunFolder, fitting: Fitting) -> None:
    optimizer: Mapping[str, Any] = fitting.optimizer.state_dict()
    content = saving.checkpoint(
        fitting.model, optimizer, fitting.at.best_epoch, fitting.at.best_loss
    )
    for name in (saving.PHASE1, saving.BEST):
        saving.write(folder.checkpoints / name, content)


def _measure(
    request: Request, folder: RunFolder, progress: Progress, fitting: Fitting, sets: Sets
) -> dict[str, Any]:
    model = fitting.model
    remembered = fitting.remembered
    seeds = SeedTree(request.seed).child("planner", "bootstrap")
    result: dict[str, Any] = {
        "epochs": fitting.at.best_epoch,
        "val_loss": fitting.at.best_loss,
        "validation": dict(fitting.best_metrics),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tools": len(model.catalog),
        "train_workflows": len(remembered),
        "search": {
            name: getattr(model.settings, name)
            for name in ("prior_weight", "consensus", "length_bonus", "edge_threshold", "beam")
        },
    }
    if sets.test:
        progress.evaluation("test workflows", 0, len(sets.test))
        before = None if request.against is None else saving.load_planner(request.against)
        if before is not None:
            result["against"] = request.against
        result["test"], planned = evaluate(model, remembered, sets.test, seeds, before)
        rows = prediction_rows(planned, sets.test, model)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_text(folder.path / "predictions.jsonl", text)
        progress.evaluation("test workflows", len(sets.test), len(sets.test))
    return result


def _read_last(folder: RunFolder) -> Mapping[str, Any] | None:
    path = folder.checkpoints / LAST
    return saving.read(path) if path.is_file() else None


def _lines_done(folder: RunFolder, state: Mapping[str, Any] | None) -> int:
    """Lines of metrics that checkpoints know of: of phase 1, and once that is over of phase 2."""
    if state is not None:
        return int(state["tick"])
    return _lines_of_phase1(folder) + _lines_of_phase2(folder)


def _lines_of_phase1(folder: RunFolder) -> int:
    """Those of a phase 1 that is over."""
    if not (folder.path / "phase1.json").is_file():
        return 0
    return sum(line.get("phase") == PHASE1 for line in folder.read_metrics())


def _lines_of_phase2(folder: RunFolder) -> int:
    """Those that its last checkpoint has; what came after is done, and written, again."""
    from tutelage.orchestration.routing.phase2 import LAST as LAST2
    from tutelage.orchestration.routing.phase2 import read_checkpoint

    path = folder.path / PHASE2 / LAST2
    if not path.is_file():
        return 0
    return len(json.loads(read_checkpoint(path)["progress"])["history"])


# ------------------------------------------------------------------ phase 2


def _phase2(
    request: Request,
    settings: Settings,
    folder: RunFolder,
    progress: Progress,
    loggers: list[Logger],
) -> dict[str, Any]:
    from tutelage.orchestration.routing.phase2 import LAST as LAST2
    from tutelage.orchestration.routing.phase2 import train_phase2

    place = folder.path / PHASE2
    own = folder.checkpoints / saving.PHASE1
    earlier = request.checkpoint or (str(own) if own.is_file() else None)
    before = _lines_of_phase1(folder)
    phase = settings.training.phase2_rl
    progress.phase("Phase 2: learning to route", steps=phase.updates)

    def log(given: Mapping[str, Any]) -> None:
        line = {**given, "phase": PHASE2, "tick": before + int(given["tick"])}
        append_json(folder.metrics, line)
        for logger in loggers:
            logger.log(line)
        numbers = {k: float(v) for k, v in given.items() if isinstance(v, (int, float))}
        progress.step(int(given["step"]), numbers)

    found = train_phase2(
        place,
        settings=phase,
        outcomes=request.outcomes,
        models=request.models,
        seed=request.seed,
        checkpoint=earlier,
        resume=(place / LAST2).is_file(),
        log=log,
        warn=lambda told: progress.note(f"Warning: {told}"),
    )
    told = place / "phase2.json"
    return {
        "checkpoint": str(found.checkpoint.relative_to(folder.path)),
        "best_update": found.best_update,
        "val_reward": found.val_reward,
        **({"evaluation": json.loads(told.read_text())} if told.is_file() else {}),
    }


def planner_of(folder: RunFolder) -> PlannerModel:
    """The planner that a run trained. Raises `ModelError` when it has none."""
    return saving.load_planner(folder.path)
