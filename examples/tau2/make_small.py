"""Write the small airline: `small/`, laid out as the benchmark's `data` folder.

Eight reservations and four kinds of request: what did it cost, add bags, cancel (allowed), cancel
(not allowed, since it has no insurance). Run it again after changing it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PLACES = ("KAT", "LUM", "ZOR", "BIX", "FEN", "GOW", "HUD", "JEP")
PRICES = (120, 340, 95, 210, 480, 150, 275, 330)

POLICY = """\
# Airline policy

Look up a reservation before you answer. Cancel only reservations with insurance. Bags are free.
"""

GUIDELINES = """\
You are a customer. Say what the scenario asks. When the agent has answered, say ###STOP###
"""


def main() -> None:
    """Write all four files below `small`, in the folder from which this is run."""
    db = {
        "reservations": {
            name: {"price": price, "bags": i % 3, "insurance": i < 4, "status": "booked"}
            for i, (name, price) in enumerate(zip(PLACES, PRICES, strict=True))
        }
    }
    tasks = [task for i, name in enumerate(PLACES) for task in _tasks(i, name)]
    tasks = [{"id": str(i), **task} for i, task in enumerate(tasks)]
    domain = Path("small/tau2/domains/airline")
    guidelines = Path("small/tau2/user_simulator")
    domain.mkdir(parents=True, exist_ok=True)
    guidelines.mkdir(parents=True, exist_ok=True)
    (domain / "db.json").write_text(json.dumps(db, indent=2) + "\n")
    (domain / "tasks.json").write_text(json.dumps(tasks, indent=2) + "\n")
    (domain / "policy.md").write_text(POLICY)
    (guidelines / "simulation_guidelines.md").write_text(GUIDELINES)


def _tasks(i: int, name: str) -> list[dict[str, Any]]:
    booked = {"reservation_id": name}
    look_up = ("get_reservation_details", booked)
    cancel = [look_up, ("cancel_reservation", booked)] if i < 4 else [look_up]
    bags = ("update_reservation_baggages", {**booked, "total_baggages": 4})
    return [
        _task(f"What did reservation {name} cost?", [look_up], [str(PRICES[i])]),
        _task(f"I want 4 bags on reservation {name}.", [look_up, bags], []),
        _task(f"Please cancel reservation {name}.", cancel, []),
    ]


def _task(call: str, actions: list[tuple[str, dict[str, Any]]], told: list[str]) -> dict[str, Any]:
    return {
        "description": {"purpose": None, "relevant_policies": None, "notes": None},
        "user_scenario": {
            "persona": None,
            "instructions": {
                "task_instructions": "Accept the answer.",
                "domain": "airline",
                "reason_for_call": call,
                "known_info": None,
                "unknown_info": None,
            },
        },
        "initial_state": None,
        "evaluation_criteria": {
            "actions": [
                {"action_id": str(n), "name": name, "arguments": arguments, "info": None}
                for n, (name, arguments) in enumerate(actions)
            ],
            "communicate_info": told,
            "nl_assertions": [],
            "reward_basis": ["DB", "COMMUNICATE"],
        },
        "annotations": None,
    }


if __name__ == "__main__":
    main()
