"""The data that a planner's run works on, by what it is asked for (`planner/settings.py`).

Without a training file the workflows are synthetic, over the built-in tool graph; without a test
file a tenth of the training file is held back for the test. `job.py` runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutelage.errors import DataError, counted
from tutelage.orchestration.data.formats import read_workflows
from tutelage.orchestration.data.rows import parse_nested_json, read_rows
from tutelage.orchestration.data.synthetic import (
    builtin_graph,
    generate,
    generate_plain,
    graph_of,
    split,
)
from tutelage.orchestration.data.workflows import Workflow, catalog_of
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, read_catalog
from tutelage.orchestration.planner.saving import load_planner
from tutelage.orchestration.planner.settings import Phase1Settings, PlannerConfig
from tutelage.seeds import SeedTree
from tutelage.tasks.overlap import (
    Overlap,
    also_trained,
    content_of,
    count_overlap,
    listed,
)

EXPERTS, AUGMENTED, TESTED = 300, 1000, 300
"""Workflows of the embedded set: as many as the document's configuration names, and a test."""
TEST_SHARE = 0.1
FEWEST_TO_SPLIT = 50


@dataclass(frozen=True, slots=True)
class PlannerDatasets:
    """What phase 1 works on."""

    train: list[Workflow]
    held_out: list[Workflow]
    test: list[Workflow]
    catalog: Catalog
    facts: Mapping[str, str]
    """What to tell about them."""
    leaks: tuple[str, ...] = ()
    """Test workflows whose instruction is one of training, by their names or rows."""

    def check_against(self, older: str | None, warn: Callable[[str], None]) -> None:
        """Refuse an older planner that cannot be scored, before anything is trained."""
        if older is None:
            return
        if not self.test:
            raise DataError(
                f"--against {older!r} needs workflows to compare on, and there are too few to hold "
                "some back; give --test FILE"
            )
        load_planner(older, warn)


def read_sets(request: PlannerConfig, settings: Phase1Settings) -> PlannerDatasets:
    """The workflows of a run. Raises `DataError` for files that cannot be learned from."""
    seeds = SeedTree(request.seed).child("planner", "data")
    if request.train is None:
        catalog, workflows, test, fields = _embedded(request, settings, seeds)
        augmented: list[Workflow] = []
    else:
        catalog, workflows, test, fields = _files(request, settings, seeds)
        count = settings.synthetic_augmentations or 0
        place = seeds.child("synthetic")
        augmented = generate(graph_of(catalog), count, place) if count else []
        if augmented:
            fields["synthetic"] = f"{len(augmented)} workflows added to the training set"
    if len(workflows) < 2:
        left = counted(len(workflows), "workflow")
        raise DataError(f"only {left} to learn from; give at least 2")
    train, held_out = split(workflows, settings.validation_share, seeds.child("validation"))
    overlap = overlap_of([*workflows, *augmented], test)
    notes = overlap.notes(drawn=request.train is None, given="--test FILE")
    if notes:
        fields["overlap"] = "; ".join(notes)
    known = also_trained([*workflows, *augmented], test, _instruction_mark)
    leaks = tuple(test[place].name or f"row {place}" for place in known)
    if leaks:
        fields["leaks"] = f"{listed(leaks)}; result.json has all names"
    fields["sets"] = (
        f"{len(train) + len(augmented)} train, {len(held_out)} validation, {len(test)} test"
    )
    return PlannerDatasets(train + augmented, held_out, test, catalog, fields, leaks)


def _embedded(
    request: PlannerConfig, settings: Phase1Settings, seeds: SeedTree
) -> tuple[Catalog, list[Workflow], list[Workflow], dict[str, str]]:
    known = request.catalog
    graph = builtin_graph() if known is None else graph_of(read_catalog(known))
    more = settings.synthetic_augmentations
    count = (settings.train_data_size or EXPERTS) + (AUGMENTED if more is None else more)
    made = generate(graph, count + TESTED, seeds.child("synthetic"))
    given, test = made[:count], made[count:]
    taken = {w.instruction for w in made}
    plain = generate_plain(graph, 2 * count, seeds.child("plain"))
    short = [w for w in plain if w.instruction not in taken]
    fields = {
        "workflows": f"synthetic, over {len(graph.catalog)} tools: {len(given)} like those of the "
        f"test and {len(short)} short ones"
    }
    return graph.catalog, [*given, *short], test, fields


def _files(
    request: PlannerConfig, settings: Phase1Settings, seeds: SeedTree
) -> tuple[Catalog, list[Workflow], list[Workflow], dict[str, str]]:
    assert request.train is not None
    beside = Path(request.train).with_name(f"{Path(request.train).stem}.catalog.json")
    named = request.catalog or (str(beside) if beside.is_file() else None)
    known = None if named is None else read_catalog(named)
    workflows = read_workflows(request.train, known, strict=False)
    test = [] if request.test is None else read_workflows(request.test, known, strict=False)
    catalog, missing = _completed(known, request, workflows, test)
    fields = {"workflows": f"{len(workflows)} from {request.train}, {len(catalog)} tools"}
    if missing:
        fields["missing tools"] = f"{missing}; added by their names alone"
    if lost := [text for w in (*workflows, *test) for text in w.untaken]:
        fields["arguments"] = (
            f"{counted(len(lost), 'reference')} that no plan can have, such as {lost[0]!r}; calls "
            "with them are taken without arguments"
        )
    if known is None:
        fields["catalog"] = "made of the tools in the training file; --catalog FILE names all"
    if request.test is None and len(workflows) >= FEWEST_TO_SPLIT:
        workflows, test = split(workflows, TEST_SHARE, seeds.child("test"))
        held = {_instruction_mark(w) for w in test}
        workflows = [w for w in workflows if _instruction_mark(w) not in held]
        fields["test"] = "a tenth of the training file, held back; --test FILE names another"
    if settings.train_data_size is not None and settings.train_data_size < len(workflows):
        size, draw = settings.train_data_size, seeds.child("size").python()
        fields["train_data_size"] = f"{size} of {len(workflows)} workflows of the file are used"
        workflows = [workflows[i] for i in sorted(draw.sample(range(len(workflows)), size))]
    return catalog, workflows, test, fields


def _completed(
    known: Catalog | None,
    request: PlannerConfig,
    workflows: Sequence[Workflow],
    test: Sequence[Workflow],
) -> tuple[Catalog, str]:
    """The catalog of a run, and the tools that nobody described but plans use, with how often.

    Raises `DataError` where those are refused: by `missing_tools`, and with a catalog that is
    given, unless that says otherwise.
    """
    rows = _tool_rows(request.train, request.test)
    made = known or catalog_of(workflows, rows)
    told_rows = known is None and any(parse_nested_json(row["tools"]) for row in rows)
    described = catalog_of((), rows) if told_rows else made
    uses = Counter(tool for w in (*workflows, *test) for tool in w.tools if tool not in described)
    if not uses:
        return made, ""
    names = [f"{name} ({count})" for name, count in uses.most_common()]
    told = f"{len(uses)} tools in {uses.total()} subtasks: {', '.join(names)}"
    if (request.missing_tools or ("refuse" if known else "add")) == "refuse":
        where = f"the catalog {request.catalog!r}" if known else f"{request.train!r}"
        raise DataError(
            f"{where} describes not all tools that its plans use. Missing are {told}. Describe "
            "them in the catalog, or take them by their names alone: --missing-tools add"
        )
    others = tuple(CatalogTool(name) for name in uses if name not in made)
    return Catalog((*made.tools, *others), made.links), told


def read_episodes(request: PlannerConfig) -> tuple[list[Workflow], Catalog | None]:
    """The workflows that phase 2 executes with real workers, and the catalog of their tools."""
    if request.tasks is not None:
        return read_workflows(request.tasks)[: request.num_tasks], None
    graph, seeds = builtin_graph(), SeedTree(request.seed).child("phase2", "tasks")
    return generate_plain(graph, request.num_tasks, seeds), graph.catalog


def _tool_rows(*paths: str | None) -> list[Mapping[str, Any]]:
    """Rows that describe the tools they were given, as NESTFUL's do."""
    return [row for path in paths if path is not None for row in read_rows(path) if "tools" in row]


def _instruction_mark(workflow: Workflow) -> str:
    """Equal for workflows that ask for the same."""
    return content_of(workflow.instruction)


def overlap_of(train: Sequence[Workflow], test: Sequence[Workflow]) -> Overlap:
    """How many test workflows ask for what a training workflow does, word for word."""
    return count_overlap(train, (), test, key=_instruction_mark)
