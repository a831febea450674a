"""Our prompt searches on a rule-based simulator: held-out score, budget used, verdict, per seed.

`python benchmarks/prompt/run.py --simulator desk --rollouts 600 --seeds 10`. The simulators are no
language models: they compare search procedures with each other. The bank of `screen`
holds the right sentences among useless ones, so its scores are no match for those of the other
searches, which must find them. `players.py` shows the simulators to the searches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import clerk
import desk
from players import clerk_agent, clerk_optimiser, desk_agent, desk_optimiser, splits

from tutelage.prompts import APO, GEPA, Limits, Reflect, Screen, Settings, optimise

CLERK_BANK = (*(sentence for sentence, _, _ in clerk.RULES.values()), *clerk.DECOYS)
DESK_BANK = (*(sentence for sentence, _, _ in desk.ADVICE.values()), *desk.VAGUE)


def one(simulator: str, name: str, rollouts: int, test: int, seed: int) -> dict[str, object]:
    """One search: what it reached on unseen tasks and what it used."""
    at_desk = simulator == "desk"
    bank = DESK_BANK if at_desk else CLERK_BANK
    algorithms = {"apo": APO(), "gepa": GEPA(), "reflect": Reflect()}
    algorithms["screen"] = Screen(bank)
    algorithm = algorithms[name]
    ask = (desk_optimiser if at_desk else clerk_optimiser)(seed)
    began = time.perf_counter()
    result = asyncio.run(
        optimise(
            algorithm,
            {"prompt": desk.SEED_PROMPT if at_desk else clerk.SEED_PROMPT},
            splits((desk if at_desk else clerk).make_task, 40, 24, test, seed),
            (desk_agent if at_desk else clerk_agent)(seed),
            Settings(simulator, Limits(rollouts=rollouts), seed=seed),
            ask=ask if algorithm.needs_optimiser else None,
        )
    )
    return {
        "simulator": desk.LABEL if at_desk else clerk.LABEL,
        "algorithm": name,
        "seed": seed,
        "rollouts": result.spent.rollouts,
        "optimiser_calls": result.spent.optimiser_calls,
        "before": result.test.seed_reward,
        "after": result.test.best_reward,
        "verdict": result.test.verdict.value,
        "seconds": round(time.perf_counter() - began, 2),
    }


def main() -> None:
    """One JSON line a search, then the mean of each algorithm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulator", choices=("clerk", "desk"), default="desk")
    parser.add_argument("--algorithms", nargs="+", default=["apo", "gepa", "reflect", "screen"])
    parser.add_argument("--rollouts", type=int, default=600)
    parser.add_argument("--test", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    for name in given.algorithms:
        rows = [
            one(given.simulator, name, given.rollouts, given.test, seed)
            for seed in range(given.seeds)
        ]
        for row in rows:
            print(json.dumps(row))
        mean = sum(float(str(row["after"])) for row in rows) / len(rows)
        print(json.dumps({"algorithm": name, "seeds": len(rows), "mean_after": round(mean, 4)}))


if __name__ == "__main__":
    main()
