"""A small airline in tau2-bench's format, graded by its rules: for a first run, and for tests.

Its data lie in `small/`, made by `make_small.py`; its four tools are here. A dialogue earns 1 when
the database ends as it does after the task's own actions, and everything in `communicate_info` was
said to the customer. It says nothing about the benchmark: for that see `tau2_benchmark.py`.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tau2_dialogue import JSON
from tau2_tasks import SMALL, SerializedTask

from tutelage import ToolError, tool
from tutelage.errors import DataError
from tutelage.tools.tool import Tool

GRADED = ("DB", "COMMUNICATE")


class Airline:
    """The tools over one copy of the database."""

    def __init__(self, db: JSON) -> None:
        self.db = copy.deepcopy(db)

    def _reservation(self, reservation_id: str) -> JSON:
        if reservation_id not in self.db["reservations"]:
            raise ToolError(f"Reservation {reservation_id} not found")
        return self.db["reservations"][reservation_id]

    @tool
    def get_reservation_details(self, reservation_id: str) -> str:
        """Look up a reservation.

        Args:
            reservation_id: Its three letters, such as KAT.
        """
        found = self._reservation(reservation_id)
        insured = "insurance" if found["insurance"] else "no insurance"
        return f"price {found['price']}, {found['bags']} bags, {insured}, {found['status']}"

    @tool
    def cancel_reservation(self, reservation_id: str) -> str:
        """Cancel a reservation.

        Args:
            reservation_id: Its three letters, such as KAT.
        """
        self._reservation(reservation_id)["status"] = "cancelled"
        return "cancelled"

    @tool
    def update_reservation_baggages(self, reservation_id: str, total_baggages: int) -> str:
        """Change the number of bags of a reservation.

        Args:
            reservation_id: Its three letters, such as KAT.
            total_baggages: How many bags it has afterwards.
        """
        if not 0 <= total_baggages <= 9:
            raise ToolError("A reservation has 0 to 9 bags")
        self._reservation(reservation_id)["bags"] = total_baggages
        return "updated"

    def tools(self) -> dict[str, Tool]:
        """Its tools by name."""
        found = (
            self.get_reservation_details,
            self.cancel_reservation,
            self.update_reservation_baggages,
        )
        return {tool.name: tool for tool in found}

    def use(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a tool. Raises `ToolError` for an unknown one, bad arguments, and what it refuses."""
        found = self.tools().get(name)
        if found is None:
            raise ToolError(f"Tool {name!r} not found")
        try:
            checked = found.signature.read(json.dumps(dict(arguments)))
        except ValueError as error:
            raise ToolError(str(error)) from error
        return str(found(**checked))


class SmallWorld:
    """See `tau2_dialogue.World`."""

    def __init__(self, row: SerializedTask) -> None:
        """Raises `DataError` for a task that is graded by something else than the rules here."""
        task = json.loads(row["data"])
        self._criteria = task["evaluation_criteria"]
        unknown = sorted({*self._criteria["reward_basis"]} - {*GRADED})
        if unknown:
            raise DataError(f"task {row['id']!r}: reward_basis {unknown[0]!r} is not graded here")
        self._airline = Airline(_data()["db"])
        self.tools: Sequence[JSON] = [t.spec.to_dict() for t in self._airline.tools().values()]
        self.assistant_prompt: str = f"You are a customer service agent.\n{_data()['policy']}"
        reason = task["user_scenario"]["instructions"]["reason_for_call"]
        self.user_prompt: str = f"{_data()['guidelines']}\nScenario: {reason}"

    def call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Run a tool on this task's database."""
        try:
            return self._airline.use(name, arguments), False
        except ToolError as error:
            return f"Error: {error}", True

    def evaluate(self, messages: Sequence[JSON]) -> Mapping[str, float]:
        """The product of the parts in `reward_basis`, and both parts."""
        gold = Airline(_data()["db"])
        for action in self._criteria["actions"] or ():
            gold.use(action["name"], action["arguments"])
        said = [
            (m["content"] or "").lower().replace(",", "")
            for m in messages
            if m["role"] == "assistant"
        ]
        told = self._criteria["communicate_info"] or ()
        parts = {
            "DB": float(gold.db == self._airline.db),
            "COMMUNICATE": float(all(any(t.lower() in text for text in said) for t in told)),
        }
        reward = 1.0
        for name in self._criteria["reward_basis"]:
            reward *= parts[name]
        return {"reward": reward, "db": parts["DB"], "communicate": parts["COMMUNICATE"]}


@functools.cache
def _data() -> JSON:
    domain = SMALL / "tau2" / "domains" / "airline"
    guidelines = SMALL / "tau2" / "user_simulator" / "simulation_guidelines.md"
    return {
        "db": json.loads((domain / "db.json").read_text()),
        "policy": (domain / "policy.md").read_text().strip(),
        "guidelines": guidelines.read_text().strip(),
    }
