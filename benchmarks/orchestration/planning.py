"""How well plans are learned: the synthetic set, NESTFUL, the DAG loss, unseen tools, and speed.

    python -m benchmarks.orchestration.planning [PART ...] [--nestful FILE] [--taskbench DIR]

Parts: synthetic, indirect, dag, unseen, speed, nestful, chains; all without one. Each
prints its tables as Markdown. NESTFUL (Apache-2.0) and the tools of TaskBench are not shipped: give
the file of the one and the folder of the other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean as mean

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.measure import machine
from benchmarks.orchestration import indirect as indirect_requests
from benchmarks.orchestration.readers import read_nestful

from tutelage.orchestration.data.synthetic import (
    ToolGraph,
    builtin_graph,
    generate,
    generate_distinct,
    generate_plain,
    split,
    to_graph,
)
from tutelage.orchestration.data.workflows import Workflow, build_catalog
from tutelage.orchestration.evaluation.metrics import (
    PlanScores,
    copy_plans,
)
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, read_catalog
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.planner.fit import PlannerTrainer
from tutelage.orchestration.planner.settings import Phase1Settings
from tutelage.orchestration.planner.text import features
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import Difference

NAMES = ("node_f1", "edge_f1", "exact_nodes", "exact")
TITLES = ("node F1", "edge F1", "exact tools", "exact plan")
SEEDS = SeedTree(0).child("benchmark", "planning")


def fitted(
    workflows: list[Workflow], catalog: Catalog, settings: Phase1Settings, seeds: SeedTree
) -> PlannerTrainer:
    """A trained planner; a fifth of the workflows is its validation set."""
    train, held = split(workflows, settings.validation_share, seeds.child("validation"))
    fitting = PlannerTrainer(train, held, catalog, settings, seeds)
    while not fitting.done:
        fitting.train_epoch()
    return fitting


def plans_of(
    fitting: PlannerTrainer, test: list[Workflow], into: dict[str, list], raw: list[bool]
) -> None:
    """The planner's plans and the baselines', appended."""
    model = fitting.model
    texts = [features(w.instruction) for w in test]
    assert model.memory is not None
    nearest = model.memory.texts.products(texts, model.idf).topk(1, dim=1).indices[:, 0].tolist()
    made = model.plan_all([w.instruction for w in test])
    raw += [p.raw_valid for p in made]
    found = {"nearest": copy_plans(fitting.remembered, test, nearest)}
    bare = [(p.plan.instruction, tuple(Node(node.tool) for node in p.plan.nodes)) for p in made]
    found["no edges"] = [Plan(*parts) for parts in bare]
    for name, plans in {"planner": [p.plan for p in made], **found}.items():
        into.setdefault(name, []).extend(plans)


def table(scores: dict[str, PlanScores]) -> None:
    """Scores in percent, then gains over the baselines; arguments where gold plans have them."""
    names = NAMES
    columns = " | ".join(TITLES)
    rule = "|---" * (len(names) + 1) + "|"
    print(f"| | {columns} |\n{rule}")
    for name, found in scores.items():
        cells = " | ".join(f"{100 * mean(getattr(found, n)):.1f}" for n in names)
        print(f"| {name} | {cells} |")
    print(f"\n| gain over | {columns} |\n{rule}")
    for name, found in scores.items():
        if name == "planner":
            continue
        gains = scores["planner"].compare(found, SEEDS.child("bootstrap", name))
        print(f"| {name} | " + " | ".join(cell(gains[n]) for n in names) + " |")
    print("\nA ~ marks an interval that contains 0.\n")


def cell(gain) -> str:
    """A gain in points with its interval."""
    tie = " ~" if gain.low <= 0 <= gain.high else ""
    return f"{100 * gain.mean:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]{tie}"


def synthetic() -> None:
    """1,300 synthetic workflows and 2,600 short ones to learn from, 300 held out."""
    made = generate(builtin_graph(), 1600, SEEDS.child("synthetic"))
    taken = {w.instruction for w in made}
    short = generate_plain(builtin_graph(), 2600, SEEDS.child("synthetic short"))
    train, test = made[:1300] + [w for w in short if w.instruction not in taken], made[1300:]
    begun = time.process_time()
    fitting = fitted(train, builtin_graph().catalog, Phase1Settings(), SEEDS.child("synthetic fit"))
    print(f"## Synthetic\n\nTrained in {time.process_time() - begun:.0f} CPU s.\n")
    plans: dict[str, list] = {}
    raw: list[bool] = []
    plans_of(fitting, test, plans, raw)
    table({n: PlanScores.score(p, test) for n, p in plans.items()})
    print(f"DAGs before decoding: {100 * sum(raw) / len(raw):.1f} %\n")


def nestful(path: str) -> None:
    """Five-fold cross-validation on 200 gold plans."""
    workflows = read_nestful(path)
    catalog = build_catalog(workflows)
    order = SEEDS.child("nestful").python().sample(range(len(workflows)), len(workflows))
    plans: dict[str, list] = {}
    gold: list[Workflow] = []
    for fold in range(5):
        test = [workflows[i] for i in order[fold::5]]
        train = [workflows[i] for k, i in enumerate(order) if k % 5 != fold]
        plans_of(
            fitted(train, catalog, Phase1Settings(), SEEDS.child("nestful", fold)), test, plans, []
        )
        gold += test
    print(f"## NESTFUL\n\n{len(gold)} plans over {len(catalog)} tools, 5 folds.\n")
    table({n: PlanScores.score(p, gold) for n, p in plans.items()})


def joined(paths: list[Path]) -> ToolGraph:
    """One graph of several, by their links; a name that two have gets its graph's behind it."""
    parts = {path: read_catalog(path) for path in paths}
    counts = Counter(name for part in parts.values() for name in part.names)
    tools: list[CatalogTool] = []
    links: dict[str, dict[str, None]] = {}
    for path, part in parts.items():
        names = {n: f"{n} of {path.parent.name}" if counts[n] > 1 else n for n in part.names}
        tools += [replace(tool, name=names[tool.name]) for tool in part.tools]
        links |= {name: {} for name in names.values()}
        for link in json.loads(path.read_text(encoding="utf-8"))["links"]:
            if link["source"] != link["target"]:
                links[names[link["source"]]][names[link["target"]]] = None
    followers = {name: tuple(after) for name, after in links.items()}
    return replace(to_graph(Catalog(tuple(tools))), followers=followers)


def chains(folder: str) -> None:
    """3,000 chains over the tools and links of TaskBench's three graphs, 500 held out."""
    graph = joined(sorted(Path(folder).glob("*/graph_desc.json")))
    catalog, seeds = graph.catalog, SEEDS.child("chains")
    made = generate_distinct(graph, 3500, seeds, 6, {"chain": 1.0})
    train, test = made[:3000], made[3000:]
    begun = time.process_time()
    fitting = fitted(train, catalog, Phase1Settings(), seeds.child("fit"))
    taken = time.process_time() - begun
    print(
        f"## Chains\n\n{len(train)} chains over {len(catalog)} tools, {len(test)} held out. Best "
        f"after {fitting.at.best_epoch} epochs; trained in {taken:.0f} CPU s.\n"
    )
    plans: dict[str, list] = {}
    plans_of(fitting, test, plans, [])
    table({n: PlanScores.score(p, test) for n, p in plans.items()})


def indirect() -> None:
    """3,500 chains over 260 tools that their requests seldom name: the whole command, timed."""
    catalog = indirect_requests.catalog()
    made = indirect_requests.generate(4000, SEEDS.child("indirect", "reported"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        nodes = [
            {"id": t.name, "desc": t.description, "input-type": t.inputs, "output-type": t.outputs}
            for t in catalog.tools
        ]
        (folder / "tools.json").write_text(json.dumps({"nodes": nodes}))
        for name, rows in (("train", made[:3500]), ("test", made[3500:])):
            (folder / f"{name}.json").write_text(json.dumps([w.to_row(catalog) for w in rows]))
        files = ("--train", "train.json", "--test", "test.json", "--catalog", "tools.json")
        program = ("-c", "from tutelage.cli import main; main()")
        command = (*program, "train", "planner", "--phase", "1", *files, "--output", "run")
        begun, before = time.perf_counter(), os.times()
        subprocess.run([sys.executable, *command], cwd=folder, check=True, capture_output=True)
        clock, after = time.perf_counter() - begun, os.times()
        cpu = after.children_user + after.children_system
        cpu -= before.children_user + before.children_system
        found = json.loads((folder / "run" / "result.json").read_text())["phase1"]
    print(
        f"## Indirect requests\n\nThe whole command: {clock:.0f} s by the clock, {cpu:.0f} CPU s; "
        f"best after {found['epochs']} epochs.\n"
    )
    print("| | node F1 | edge F1 | exact tools | exact plan |\n|---|---|---|---|---|")
    for name, scores in found["test"]["scores"].items():
        print(f"| {name} | " + " | ".join(f"{100 * scores[n]:.1f}" for n in NAMES) + " |")
    print("\n| gain over | node F1 | edge F1 | exact tools | exact plan |\n|---|---|---|---|---|")
    for name, gains in found["test"]["gains"].items():
        print(f"| {name} | " + " | ".join(cell(Difference(**gains[n])) for n in NAMES) + " |")
    print()


def dag() -> None:
    """The weight of the DAG loss on a tenth of the data."""
    catalog = builtin_graph().catalog
    made = generate(builtin_graph(), 430, SEEDS.child("dag"))
    train, test = made[:130], made[130:]
    print("## DAG loss\n\n130 workflows, 300 held out, kind poly.\n")
    print("| lambda | node F1 | edge F1 | DAGs before decoding | edge F1 over lambda 0 |")
    print("|---|---|---|---|---|")
    first: PlanScores | None = None
    for weight in (0.0, 0.1, 0.3, 1.0):
        fitting = fitted(train, catalog, Phase1Settings(lambda_dag=weight), SEEDS.child("dag fit"))
        made_ = fitting.model.plan_all([w.instruction for w in test])
        found = PlanScores.score([p.plan for p in made_], test, [p.raw_valid for p in made_])
        first = first or found
        gain = found.compare(first, SEEDS.child("dag", str(weight)))["edge_f1"]
        print(
            f"| {weight} | {100 * found.summary()['node_f1']:.1f} | "
            f"{100 * found.summary()['edge_f1']:.1f} | {100 * (found.raw_validity or 0):.1f} | "
            f"{cell(gain)} |",
            flush=True,
        )
    print()


def unseen() -> None:
    """Eight tools that stand in the catalog and in no training workflow."""
    catalog = builtin_graph().catalog
    made = generate(builtin_graph(), 1600, SEEDS.child("unseen"))
    held = set(random.Random(0).sample(catalog.names, 8))
    train = [w for w in made if not held & set(w.tools)]
    test = [w for w in made if held & set(w.tools)]
    fitting = fitted(train, catalog, Phase1Settings(refit=False), SEEDS.child("unseen fit"))
    right = used = wanted = 0
    for planned, workflow in zip(
        fitting.model.plan_all([w.instruction for w in test]), test, strict=True
    ):
        own = {node.tool for node in planned.plan.nodes} & held
        right += len(own & set(workflow.tools))
        used += len(own)
        wanted += len(held & set(workflow.tools))
    print(
        f"## Unseen tools\n\n{len(held)} tools held out of {len(train)} training workflows: found "
        f"{100 * right / wanted:.1f} % of the {wanted} times they were needed, "
        f"{100 * right / max(1, used):.1f} % of their uses right; one tool of the catalog drawn at "
        f"random would be right {100 / len(catalog):.1f} % of the time.\n"
    )


def speed() -> None:
    """Planning in batch, and plans of 200 nodes."""
    made = generate(builtin_graph(), 1300, SEEDS.child("speed"))
    settings = Phase1Settings(num_epochs=3, refit=False)
    model = fitted(made, builtin_graph().catalog, settings, SEEDS.child("speed fit")).model
    texts = [w.instruction for w in made] * 2
    begun = time.process_time()
    model.plan_all(texts)
    taken = time.process_time() - begun
    print(f"## Speed\n\n{60 * len(texts) / taken:.0f} instructions a CPU minute, one thread.\n")


PARTS = {
    "synthetic": synthetic,
    "indirect": indirect,
    "dag": dag,
    "unseen": unseen,
    "speed": speed,
}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=[*PARTS, "nestful", "chains"])
    parser.add_argument("--nestful", help="train.json of NESTFUL")
    parser.add_argument("--taskbench", help="folder with the three graphs of TaskBench")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}\n")
    for part in given.parts:
        if part == "nestful":
            if given.nestful:
                nestful(given.nestful)
            continue
        if part == "chains":
            if given.taskbench:
                chains(given.taskbench)
            continue
        PARTS[part]()


if __name__ == "__main__":
    main()
