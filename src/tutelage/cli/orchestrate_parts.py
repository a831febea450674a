"""What the verbs of `tutelage orchestrate` share: options, and the pool, router, planner they mean.

Options stand together in dataclasses that `grouped.py` spreads over the command line. A pool of
real servers is only used when it is asked for; without it the embedded simulated workers do the
work, and `pool_words` says so every time. In the same way the embedded planner plans until another
was trained, and says that.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutelage.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from tutelage.orchestration.execution.verifiers import Verifiers
    from tutelage.orchestration.execution.workers import Pool, Worker
    from tutelage.orchestration.plan.catalog import Catalog
    from tutelage.orchestration.plan.dag import Plan
    from tutelage.orchestration.planner.model import PlannerModel
    from tutelage.orchestration.routing.contract import Router

POOLS = ("simulated", "replay", "openai")
ROUTERS = (
    "cheapest",
    "fastest",
    "accurate",
    "greedy",
    "random",
    "cascade:NAME,NAME,...",
    "the checkpoint of phase 2",
)

RouterName = Annotated[
    str,
    typer.Option(
        "--router",
        metavar="NAME",
        help="Who chooses workers: cheapest, fastest, accurate, greedy, random, "
        "cascade:NAME,NAME,... or the file of a router that phase 2 trained.",
    ),
]
VerifiersFile = Annotated[
    Path | None,
    typer.Option(
        "--verifiers",
        metavar="FILE",
        help='Verifiers by type as JSON: {"default": {"kind": "present"}, "sum": {"kind": ...}}.',
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Where all draws come from.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
CatalogFile = Annotated[
    Path | None,
    typer.Option("--catalog", metavar="FILE", help="Tools that plans may use; else the built-in."),
]


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """Who plans, and with which tools."""

    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The planner: a run of train planner, or its file."),
    ] = None
    catalog: CatalogFile = None

    def read_catalog(self) -> Catalog | None:
        """The catalog of the file, None for none."""
        return make_catalog(self.catalog)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Where workers stand."""

    pool: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Where workers stand: simulated (the default), replay (needs --outcomes), or "
            "openai: real servers, with keys from the environment.",
        ),
    ] = None
    workers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Workers as JSON or YAML; else the eight of the preset classic."
        ),
    ] = None
    outcomes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of the replay pool: recorded outcomes."),
    ] = None
    models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of the replay pool: prices of its workers."),
    ] = None

    def make(self) -> Pool:
        """The pool. Raises `ConfigError` for options that contradict."""
        return make_pool(self.pool, self.workers, self.outcomes, self.models)


PLANNER, POOL = PlannerOptions(), PoolOptions()
"""Nothing given."""


@dataclass(frozen=True, slots=True)
class ChosenPlanner:
    """A planner and where it comes from, in words."""

    candidates: Callable[[Sequence[str], int], Sequence[Sequence[Plan]]]
    """For each instruction so many plans, the best first; there may be fewer."""
    source: str

    def plan(self, instruction: str) -> Plan:
        """The best plan."""
        return self.candidates([instruction], 1)[0][0]


def seconds(text: str | None, option: str) -> float | None:
    """`20s`, `500ms`, `2m` or a number of seconds. Raises `ConfigError`."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?\s*", text)
    value = 0.0 if found is None else float(found[1]) * _UNITS[found[2] or "s"]
    if value <= 0:
        raise ConfigError(f"{option} is {text!r}; give a time above 0, such as 20s, 500ms or 2m")
    return value


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def make_pool(
    name: str | None, workers: Path | None, outcomes: Path | None, models: Path | None
) -> Pool:
    """The pool that options ask for. Raises `ConfigError` for options that contradict."""
    from tutelage.orchestration.execution.worker_files import classic, read_workers

    name = name or ("replay" if outcomes is not None else "simulated")
    if name not in POOLS:
        raise ConfigError(f"unknown pool {name!r}; choose from {', '.join(POOLS)}")
    if name != "replay" and (outcomes is not None or models is not None):
        raise ConfigError(
            f"--outcomes and --models are for the replay pool, not for {name!r}; "
            "leave them out, or choose --pool replay"
        )
    if name == "replay":
        from tutelage.orchestration.data.outcomes import read_outcomes
        from tutelage.orchestration.execution.pools.replay import ReplayPool

        if outcomes is None or models is None:
            raise ConfigError("--pool replay needs --outcomes FILE and --models FILE")
        if workers is not None:
            raise ConfigError("the replay pool has the workers of --models; leave out --workers")
        return ReplayPool(read_outcomes(outcomes, models))
    listed: Sequence[Worker] = classic() if workers is None else read_workers(workers)
    if name == "simulated":
        from tutelage.orchestration.execution.pools.simulated import SimulatedPool

        return SimulatedPool(listed)
    from tutelage.orchestration.execution.pools.openai import OpenAIPool

    return OpenAIPool(listed)


def make_router(name: str, pool: Pool) -> Router:
    """A router by name. Raises `ConfigError` with those that exist."""
    from tutelage.orchestration.routing import contract as routing

    known = {worker.name for worker in pool.workers}
    if name.startswith("cascade:"):
        names = [part.strip() for part in name.removeprefix("cascade:").split(",") if part.strip()]
        for worker in names:
            if worker not in known:
                raise ConfigError(f"--router names {worker!r}; the workers are {sorted(known)!r}")
        return routing.cascade(names)
    made: dict[str, Callable[[], Router]] = {
        "cheapest": routing.cheapest,
        "fastest": routing.fastest,
        "accurate": routing.most_accurate,
        "greedy": routing.GreedyUtility,
        "random": routing.RandomRouter,
    }
    if name not in made and Path(name).is_file():
        from tutelage.orchestration.routing.router import load_router

        return load_router(name)
    if name not in made:
        raise ConfigError(f"unknown router {name!r}; choose from {', '.join(ROUTERS)}")
    return made[name]()


def make_verifiers(path: Path | None, pool: Pool) -> Verifiers | None:
    """Verifiers from a file; None: those that the pool has by itself."""
    if path is None:
        return None
    from tutelage.errors import DataError
    from tutelage.orchestration.data.rows import read_json
    from tutelage.orchestration.execution.named_verifiers import default_verifiers, make_verifier
    from tutelage.orchestration.execution.verifiers import Verifiers

    data = read_json(path)
    if not isinstance(data, dict) or not all(isinstance(v, dict) for v in data.values()):
        raise DataError(f"{str(path)!r} needs an object: a verifier by type, and 'default'")
    made = {kind: make_verifier(row, f"{path}: {kind!r}") for kind, row in data.items()}
    default = made.pop("default", default_verifiers(mock=pool.mock).default)
    return Verifiers(default, made)


def make_catalog(path: Path | None) -> Catalog | None:
    """The catalog of a file, None for none."""
    from tutelage.orchestration.plan.catalog import read_catalog

    return None if path is None else read_catalog(path)


def builtin_catalog(*plans: Plan) -> Catalog | None:
    """The built-in catalog, where it has every tool of the plans: it knows their kinds."""
    from tutelage.orchestration.data.synthetic import builtin_graph

    known = builtin_graph().catalog
    return known if all(node.tool in known for plan in plans for node in plan.nodes) else None


def make_planner(checkpoint: Path | None, catalog: Catalog | None, seed: int) -> ChosenPlanner:
    """The trained planner of a checkpoint, without one the newest that was trained here, and when
    there is none either, the embedded one, which the first use trains. Without torch, plans are
    copied.
    """
    if checkpoint is None and importlib.util.find_spec("torch") is None:
        return _nearest(catalog, seed)
    found = checkpoint or _newest()
    if found is not None:
        from tutelage.orchestration.planner.saving import load_planner

        model = load_planner(found)
        if catalog is not None:
            model.use_catalog(catalog)
        return _searching(model, f"of the planner {found}")
    return _embedded(catalog)


def _nearest(catalog: Catalog | None, seed: int) -> ChosenPlanner:
    """What there is without torch."""
    from tutelage.orchestration.data.synthetic import builtin_graph, graph_of
    from tutelage.orchestration.planner.nearest import KNOWN, NearestPlan

    nearest = NearestPlan.synthetic(
        builtin_graph() if catalog is None else graph_of(catalog), seed=seed
    )
    return ChosenPlanner(
        lambda instructions, count: [(nearest.plan(text),) for text in instructions],
        f"COPIED from the nearest of {KNOWN} synthetic workflows, for want of torch, and seldom "
        "right; for a planner: pip install 'tutelage[train]'",
    )


def _embedded(catalog: Catalog | None) -> ChosenPlanner:
    """The planner that the first use trains, with a word about it."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tutelage.cli.console import messages, say
    from tutelage.orchestration.planner.embedded import RECIPE, embedded_planner

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages(), transient=True) as bar:
        task: TaskID | None = None

        def watch(done: int, of: int) -> None:
            nonlocal task
            if task is None:
                say(messages(), _FIRST)
                task = bar.add_task("training the embedded planner", total=of)
            bar.update(task, completed=done)

        found = embedded_planner(catalog, watch=watch)
    if found.unkept:
        say(messages(), f"The embedded planner could not be kept: {found.unkept}")
    return _searching(
        found.model,
        f"of the EMBEDDED planner: it learned from {RECIPE.workflows} synthetic workflows and none "
        "of yours; for one that did: tutelage train planner --train FILE, then --checkpoint",
    )


_FIRST = (
    "No planner was trained here. The embedded one is trained now, once: about forty seconds of a "
    "core."
)


def _newest() -> Path | None:
    """The planner that was trained last below the working directory."""
    from tutelage.orchestration.planner.saving import PHASE1
    from tutelage.runs.folder import RUNS

    places = [Path("checkpoints") / PHASE1, *RUNS.glob(f"*/{PHASE1}")]
    places += RUNS.glob(f"*/checkpoints/{PHASE1}")
    there = [place for place in places if place.is_file()]
    return max(there, key=lambda place: place.stat().st_mtime, default=None)


def _searching(model: PlannerModel, source: str) -> ChosenPlanner:
    """A planner; its further candidates are what other settings of its search find."""
    from dataclasses import replace

    own = model.settings
    # From the planner's own settings outwards: other edges, other lengths, without its memory.
    searches = [
        replace(
            own, length_bonus=own.length_bonus + longer, prior_weight=prior, edge_threshold=edge
        )
        for longer in (0.0, 1.0, -1.0, 2.0)
        for prior in dict.fromkeys((own.prior_weight, 0.0))
        for edge in dict.fromkeys((own.edge_threshold, 0.3, 0.7))
    ]

    def candidates(instructions: Sequence[str], count: int) -> Sequence[Sequence[Plan]]:
        found: list[list[Plan]] = [[] for _ in instructions]
        for settings in searches:
            open_to = [i for i, plans in enumerate(found) if len(plans) < count]
            if not open_to:
                break
            made = model.plan_all([instructions[i] for i in open_to], settings)
            for i, planned in zip(open_to, made, strict=True):
                if planned.plan not in found[i]:
                    found[i].append(planned.plan)
        return found

    return ChosenPlanner(candidates, source)


def pool_words(pool: Pool) -> str:
    """Which workers there are, and plainly whether they are real."""
    count = f"{len(pool.workers)} worker{'s' * (len(pool.workers) != 1)}"
    if pool.name == "simulated":
        return f"{count}, SIMULATED: no model is asked; real ones with --pool openai --workers FILE"
    if pool.name == "replay":
        return f"{count}, REPLAYED from recorded outcomes: no model is asked"
    return f"{count}, real, over HTTP"
