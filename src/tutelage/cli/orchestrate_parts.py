"""What the verbs of `tutelage orchestrate` read from their options: pool, router, planner, times.

A pool of real servers is only used when it is asked for; without it the embedded simulated workers
do the work, and `tell_pool` says so every time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutelage.errors import ConfigError

if TYPE_CHECKING:
    from tutelage.orchestration.catalog import Catalog
    from tutelage.orchestration.plan import Plan
    from tutelage.orchestration.routing import Router
    from tutelage.orchestration.verifiers import Verifiers
    from tutelage.orchestration.workers import Pool, Worker

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

PoolName = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="NAME",
        help="Where workers stand: simulated (the default), replay (needs --outcomes), or openai: "
        "real servers, with keys from the environment.",
    ),
]
WorkersFile = Annotated[
    Path | None,
    typer.Option(
        "--workers", metavar="FILE", help="Workers as JSON; else the eight of the preset classic."
    ),
]
OutcomesFile = Annotated[
    Path | None,
    typer.Option("--outcomes", metavar="FILE", help="Of the replay pool: recorded outcomes."),
]
ModelsFile = Annotated[
    Path | None,
    typer.Option("--models", metavar="FILE", help="Of the replay pool: prices of its workers."),
]
RouterName = Annotated[
    str,
    typer.Option(
        "--router",
        metavar="NAME",
        help="Who chooses workers: cheapest, fastest, accurate, greedy, random, "
        "cascade:NAME,NAME,... or the file of a router that phase 2 trained.",
    ),
]
CheckpointFile = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", metavar="FILE", help="The planner: phase1_best.pth of a training."
    ),
]
CatalogFile = Annotated[
    Path | None,
    typer.Option("--catalog", metavar="FILE", help="Tools that plans may use; else the built-in."),
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
    from tutelage.orchestration.worker_files import classic, read_workers

    name = name or ("replay" if outcomes is not None else "simulated")
    if name not in POOLS:
        raise ConfigError(f"unknown pool {name!r}; choose from {', '.join(POOLS)}")
    if name != "replay" and (outcomes is not None or models is not None):
        raise ConfigError(
            f"--outcomes and --models are for the replay pool, not for {name!r}; "
            "leave them out, or choose --pool replay"
        )
    if name == "replay":
        from tutelage.orchestration.outcomes import read_outcomes
        from tutelage.orchestration.pools.replay import ReplayPool

        if outcomes is None or models is None:
            raise ConfigError("--pool replay needs --outcomes FILE and --models FILE")
        if workers is not None:
            raise ConfigError("the replay pool has the workers of --models; leave out --workers")
        return ReplayPool(read_outcomes(outcomes, models))
    listed: Sequence[Worker] = classic() if workers is None else read_workers(workers)
    if name == "simulated":
        from tutelage.orchestration.pools.simulated import SimulatedPool

        return SimulatedPool(listed)
    from tutelage.orchestration.pools.openai import OpenAIPool

    return OpenAIPool(listed)


def make_router(name: str, pool: Pool) -> Router:
    """A router by name. Raises `ConfigError` with those that exist."""
    from tutelage.orchestration import routing

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
        from tutelage.orchestration.router import load_router

        return load_router(name)
    if name not in made:
        raise ConfigError(f"unknown router {name!r}; choose from {', '.join(ROUTERS)}")
    return made[name]()


def make_verifiers(path: Path | None, pool: Pool) -> Verifiers | None:
    """Verifiers from a file; None: those that the pool has by itself."""
    if path is None:
        return None
    import json

    from tutelage.errors import DataError
    from tutelage.orchestration.verifiers import Verifiers, default_verifiers, make_verifier

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{str(path)!r} is no readable JSON file: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(v, dict) for v in data.values()):
        raise DataError(f"{str(path)!r} needs an object: a verifier by type, and 'default'")
    made = {kind: make_verifier(row, f"{path}: {kind!r}") for kind, row in data.items()}
    default = made.pop("default", default_verifiers(mock=pool.mock).default)
    return Verifiers(default, made)


def make_catalog(path: Path | None) -> Catalog | None:
    """The catalog of a file, None for none."""
    from tutelage.orchestration.catalog import read_catalog

    return None if path is None else read_catalog(path)


def builtin_catalog(*plans: Plan) -> Catalog | None:
    """The built-in catalog, where it has every tool of the plans: it knows their kinds."""
    from tutelage.orchestration.synthetic import builtin_graph

    known = builtin_graph().catalog
    return known if all(node.tool in known for plan in plans for node in plan.nodes) else None


def make_planner(checkpoint: Path | None, catalog: Catalog | None, seed: int) -> ChosenPlanner:
    """The trained planner of a checkpoint, without one the newest that was trained here, and when
    there is none either, the nearest of synthetic workflows.
    """
    found = checkpoint or _newest()
    if found is not None:
        return _trained(found, catalog)
    from tutelage.orchestration.nearest import KNOWN, NearestPlan
    from tutelage.orchestration.synthetic import builtin_graph, graph_of

    graph = builtin_graph() if catalog is None else graph_of(catalog)
    nearest = NearestPlan.synthetic(graph, seed=seed)
    return ChosenPlanner(
        lambda instructions, count: [(nearest.plan(text),) for text in instructions],
        f"copied from the nearest of {KNOWN} synthetic workflows; better: tutelage train planner, "
        "then --checkpoint",
    )


def _newest() -> Path | None:
    """The planner that was trained last below the working directory."""
    from tutelage.orchestration.planner.saving import PHASE1
    from tutelage.train.folder import RUNS

    places = [Path("checkpoints") / PHASE1, *RUNS.glob(f"*/{PHASE1}")]
    places += RUNS.glob(f"*/checkpoints/{PHASE1}")
    there = [place for place in places if place.is_file()]
    return max(there, key=lambda place: place.stat().st_mtime, default=None)


def _trained(checkpoint: Path, catalog: Catalog | None) -> ChosenPlanner:
    """A planner; its further candidates are what other settings of its search find."""
    from dataclasses import replace

    from tutelage.orchestration.planner.saving import load_planner

    model = load_planner(checkpoint)
    if catalog is not None:
        model.use_catalog(catalog)
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

    return ChosenPlanner(candidates, f"of the planner {checkpoint}")


def pool_words(pool: Pool) -> str:
    """Which workers there are, and plainly whether they are real."""
    count = f"{len(pool.workers)} workers"
    if pool.name == "simulated":
        return f"{count}, SIMULATED: no model is asked; real ones with --pool openai --workers FILE"
    if pool.name == "replay":
        return f"{count}, REPLAYED from recorded outcomes: no model is asked"
    return f"{count}, real, over HTTP"
