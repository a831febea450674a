"""Run folders as `compare.py` compares them: `read_facts` for a run of any kind.

A prompt search, a training of weights and an orchestration leave other files and labels; here they
come down to the same facts. Nothing is played and nothing raises for what is missing: a run that
was stopped, or whose store is gone, says less. Scores come from the store, task by task; means that
only `result.json` tells are kept as such.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tutelage.errors import TutelageError
from tutelage.evaluate.compare import MEASURES, Means, Measure, Measured, RunFacts, Score, Spent
from tutelage.runs.folder import RunFolder
from tutelage.runs.measured import Measured as Rates
from tutelage.statistics.outcome import EXACT, FULL, Success
from tutelage.store import Grade, Store, Totals, open_store
from tutelage.tasks.arithmetic import EMBEDDED_REWARD, PROMPTED_REWARD
from tutelage.tasks.overlap import footnote, shared_in
from tutelage.types import EXPECTED_FIELDS, INPUT_FIELDS, JSON

_SAMPLE = 1 << 20
"""Bytes at both ends of a weights file by which it is known again."""
_JUDGE = "llm_judge"
_OPTIMISER = ("gradient", "edit")


@dataclass(frozen=True, slots=True)
class _Folder:
    """The small files of a run, each as far as it can be read."""

    run: RunFolder
    config: JSON
    settings: JSON
    """The keys, without their origins."""
    result: JSON
    agent: JSON = field(default_factory=dict[str, Any])

    @property
    def is_prompt(self) -> bool:
        return self.config.get("kind") == "prompt"

    @property
    def is_planner(self) -> bool:
        return self.settings.get("recipe") == "planner"

    @property
    def rule(self) -> Success | None:
        """What the user said is a success."""
        section = self.settings.get("reward")
        told = self.settings.get("success") if self.is_prompt else None
        if isinstance(section, Mapping):
            told = cast("Mapping[str, Any]", section).get("success")
        with suppress(ValueError):
            return Success.of(str(told)) if told else None
        return None

    def number(self, name: str) -> float | None:
        value = self.result.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value)

    def count(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)


def read_facts(run: RunFolder) -> RunFacts:
    """The facts of a run, from its folder and its store."""
    config = _read(run.config)
    files = _Folder(
        run, config, dict(config.get("config") or {}), _read(run.result), _read(run.agent)
    )
    remarks: list[str] = []
    if files.is_planner:
        remarks.append(f"a planner is scored on plans, not tasks: tutelage show {run.path}")
    grades, totals = _stored(files, remarks)
    looks = cast("Mapping[str, Any]", files.result.get("test") or {}).get("looks", 1)
    if looks != 1:
        remarks.append(f"its test was opened {looks} times, and each look weakens a verdict")
    if said := footnote(files.result):
        remarks.append(said.removesuffix("."))
    measured = _measured(files, grades)
    return RunFacts(
        name=run.name,
        folder=str(run.path),
        trained=_trained(files),
        algorithm=_algorithm(files),
        status=str(files.result.get("status", "unfinished")),
        base=_base(files),
        base_mark=_base_mark(files),
        grader=_grader(files),
        measured=measured,
        success=_success(files, measured),
        means=_means(files),
        spent=_spent(files, totals),
        updates=_updates(files),
        best=_best(files),
        remarks=tuple(remarks),
        trained_on=shared_in(files.result),
    )


# ---------------------------------------------------------------- scores


def _labels(files: _Folder) -> dict[Measure, tuple[str, str]]:
    """Under which labels the test rollouts before and after lie."""
    if files.is_prompt:
        return {_prompt_measure(files): ("seed", "best")}
    return {name: (f"before/{name}", f"after/{name}") for name in MEASURES}


def _prompt_measure(files: _Folder) -> Measure:
    return "sampled" if files.settings.get("temperature") else "greedy"


def _stored(files: _Folder, remarks: list[str]) -> tuple[list[Grade], Totals | None]:
    address = files.run.store_address()
    if files.is_planner:
        return [], None
    if address is None:
        remarks.append("it has no store, so its differences have no interval")
        return [], None
    labels = [label for pair in _labels(files).values() for label in pair]
    try:
        with open_store(address, create=False) as store:
            run_id = _run_id(store, files.run.name)
            rule = files.rule
            part = EXACT if rule is None or rule.part is None else rule.part
            return store.grades(run_id, *labels, part=part), store.totals(run_id)
    except TutelageError as error:
        remarks.append(f"its store cannot be read, so its differences have no interval: {error}")
        return [], None


def _run_id(store: Store, name: str) -> str:
    """A folder that was renamed still holds the one run that it was made for."""
    ids = [run.id for run in store.runs()]
    return ids[0] if len(ids) == 1 else name


def _measured(files: _Folder, grades: Sequence[Grade]) -> dict[Measure, Measured]:
    tested = _test_tasks(files)
    # A later look at other tasks stands aside.
    grades = [g for g in grades if tested is None or task_key(g.fields) in tested]
    defined = _defined(files, grades)
    found: dict[Measure, Measured] = {}
    for name, labels in _labels(files).items():
        first, second = ([g for g in grades if g.label == label] for label in labels)
        components = files.result.get("components")
        if not second and components and components == files.result.get("seed_components"):
            second = first  # the seed prompt won: it was played once, for both
        if first or second:
            found[name] = Measured(
                _scores(files, first, defined),
                _scores(files, second, defined),
                _played(first),
                _played(second),
            )
    return found


def _defined(files: _Folder, grades: Sequence[Grade]) -> bool:
    """Whether the run has a success: decided once, for all of its scores."""
    graded = [g for g in grades if g.reward is not None and g.failure is None]
    return files.rule is not None or all(
        g.part is not None or g.reward in (0.0, 1.0) for g in graded
    )


def _played(grades: Sequence[Grade]) -> Rates | None:
    """How many were judged of how many, and why the others were not."""
    if not grades:
        return None
    lost = Counter(g.failure or "not ended" for g in grades if g.reward is None)
    judged = len(grades) - lost.total()
    return Rates(rollouts=len(grades), judged=judged, lost=dict(lost.most_common()))


def _scores(files: _Folder, grades: Sequence[Grade], defined: bool) -> dict[str, Score]:
    """By task; what infrastructure lost is left out, as the run's own means leave it out."""
    by_task: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    for grade in grades:
        if grade.reward is None:
            continue
        reward = 0.0 if grade.failure and files.is_prompt else grade.reward
        by_task[task_key(grade.fields)].append((reward, _right(grade, files.rule)))
    return {
        key: Score(
            sum(reward for reward, _ in some) / len(some),
            sum(right for _, right in some) / len(some) if defined else None,
        )
        for key, some in by_task.items()
    }


def _right(grade: Grade, rule: Success | None) -> bool:
    if grade.failure is not None or grade.reward is None:
        return False
    if rule is None:
        return (grade.reward if grade.part is None else grade.part) >= FULL
    value = grade.reward if rule.part is None else grade.part
    return value is not None and value >= rule.least


def _success(files: _Folder, measured: Mapping[Measure, Measured]) -> str:
    """What counts as success, in words; empty where nothing does."""
    scores = (s for m in measured.values() for side in (m.before, m.after) for s in side.values())
    if any(score.exact is None for score in scores):
        return ""
    section: Any = files.settings.get("reward")
    told = files.settings.get("success") if files.is_prompt else None
    told = cast("Mapping[str, Any]", section).get("success") if isinstance(section, dict) else told
    return str(told or "the grader's exact, else a reward of 1")


def task_key(fields: Mapping[str, Any]) -> str:
    """What makes two tasks the same: what is asked and what is expected, whatever else a row has.

    A task without such fields is known by all that it has.
    """
    said = {name: fields[name] for name in (*INPUT_FIELDS, *EXPECTED_FIELDS) if name in fields}
    text = json.dumps(said or dict(fields), sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _test_tasks(files: _Folder) -> frozenset[str] | None:
    """The sealed tasks of the run, where it wrote them down."""
    path = files.run.tasks("test")
    if not path.is_file():
        return None
    with suppress(OSError, ValueError):
        lines = path.read_text(encoding="utf-8").splitlines()
        return frozenset(task_key(json.loads(line)) for line in lines if line)
    return None


def _means(files: _Folder) -> dict[Measure, Means]:
    """What `result.json` says itself."""
    names = {"reward": "reward_{}_{}", "exact": "success_{}_{}"}
    found: dict[Measure, Means] = {}
    for measure in _labels(files):
        kind = "sampled" if files.is_prompt else measure
        values = {
            f"{part}_{when}": files.number(name.format(when, kind))
            for part, name in names.items()
            for when in ("before", "after")
        }
        if any(value is not None for value in values.values()):
            found[measure] = Means(**values)
    return found


# ---------------------------------------------------------------- what was trained


def _trained(files: _Folder) -> str:
    if files.is_prompt:
        return "prompt"
    return "orchestration" if files.is_planner else "weights"


def _algorithm(files: _Folder) -> str:
    if files.is_planner:
        return "planner"
    told = files.result.get("algorithm")
    section = files.settings.get("algorithm")
    if isinstance(section, Mapping):
        named = cast("Mapping[str, Any]", section)
        rl = named.get("name") == "rl" and files.settings.get("recipe") != "sft"
        return str(named.get("adv_estimator")) if rl else "sft"
    return str(told or section or "unknown")


def _updates(files: _Folder) -> str:
    if files.is_prompt:
        rounds = sum(line.get("phase") == "search" for line in _metrics(files.run))
        candidates = files.count("candidates")
        tried = "" if candidates is None else f", {candidates} candidates"
        return f"{rounds} rounds{tried}"
    steps = files.count("sft_steps") or files.count("rl_steps") or files.count("cold_start_steps")
    return "" if steps is None else f"{steps} steps"


def _metrics(run: RunFolder) -> list[JSON]:
    with suppress(OSError, ValueError):
        return run.read_metrics()
    return []


def _best(files: _Folder) -> str | None:
    if files.is_planner:
        return str(files.run.checkpoints)
    place = files.run.path / "best_prompt.txt" if files.is_prompt else files.run.policy
    return str(place) if place.exists() else None


def _grader(files: _Folder) -> str:
    """The reward's name; an agent that grades itself is named."""
    if files.is_planner:
        return "workflows"
    if files.is_prompt:
        named, agent = files.settings.get("reward"), files.config.get("python")
        by_agent = agent or files.settings.get("agent")
        own = f"agent {by_agent}" if by_agent else PROMPTED_REWARD
        return str(named or own)
    if files.agent and files.agent.get("reward") is None and files.run.tasks("test").is_file():
        return f"agent {files.agent.get('agent')}"
    section = cast("Mapping[str, Any]", files.settings.get("agent") or {})
    return str(files.agent.get("reward") or section.get("reward_name") or EMBEDDED_REWARD)


def _base(files: _Folder) -> str:
    """The model in words."""
    if files.is_planner:
        return "planner network"
    if files.is_prompt:
        models = dict(_task_models(files))
        named = (f"{m.get('model')} at {m.get('base_url')}" for m in models.values())
        return ", ".join(dict.fromkeys(named)) or "embedded, follows prompts"
    model = cast("Mapping[str, Any]", files.settings.get("model") or {})
    if model.get("path"):
        return str(model["path"])
    handed = files.agent and not files.settings.get("sft", {}).get("max_steps")
    return "handed over in Python" if handed else f"embedded {model.get('size', '')}".strip()


def _base_mark(files: _Folder) -> str | None:
    if files.is_prompt or files.is_planner:
        return f"{_trained(files)}:{_base(files)}"
    model = cast("Mapping[str, Any]", files.settings.get("model") or {})
    place = Path(str(model["path"])) if model.get("path") else files.run.checkpoints / "initial"
    found = _fingerprint(place)
    return found or (f"model:{model['path']}" if model.get("path") else None)


def _task_models(files: _Folder) -> Iterator[tuple[str, JSON]]:
    for name, model in dict(files.config.get("models") or {}).items():
        if name not in _OPTIMISER:
            yield name, model


def _fingerprint(folder: Path) -> str | None:
    """A mark of the weights in a folder: sizes and both ends of each file."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=16)
    try:
        for path in files:
            size = path.stat().st_size
            with path.open("rb") as file:
                digest.update(f"{path.name} {size}".encode() + file.read(_SAMPLE))
                file.seek(max(0, size - _SAMPLE))
                digest.update(file.read(_SAMPLE))
    except OSError:
        return None
    return f"weights:{digest.hexdigest()}"


# ---------------------------------------------------------------- what it cost


def _spent(files: _Folder, totals: Totals | None) -> Spent:
    result = files.result
    if files.is_prompt:
        on_test = cast("Mapping[str, Any]", result.get("test_spent") or {})
        known = bool(result.get("dollars_known"))
        return Spent(
            rollouts=files.count("rollouts"),
            test_rollouts=on_test.get("rollouts"),
            calls=files.count("task_calls"),
            optimiser_calls=files.count("optimiser_calls"),
            tokens=files.count("tokens"),
            dollars=files.number("dollars") if known else None,
            seconds=files.number("wall_seconds"),
        )
    remote = bool(files.agent.get("remote")) or _grader(files) == _JUDGE
    return Spent(
        rollouts=files.count("rollouts") if totals is None else totals.rollouts,
        test_rollouts=None if totals is None else totals.tests,
        calls=None if totals is None else totals.calls,
        optimiser_calls=0,
        tokens=None if totals is None else totals.prompt_tokens + totals.sampled_tokens,
        dollars=None if remote else 0.0,
        seconds=files.number("wall_seconds"),
    )


def _read(path: Path) -> JSON:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return dict(cast("Mapping[str, Any]", found)) if isinstance(found, dict) else {}
    return {}
