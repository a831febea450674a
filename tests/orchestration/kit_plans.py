"""A right plan for each request of `benchmarks/orchestration/requests/kit.jsonl`, written by hand.

They test the tools and the graders, and are no result of any planner. `{note}` and its like are
filled with the names of the folder.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tutelage.orchestration import Node, Plan
from tutelage.orchestration.execution.executor import Executor
from tutelage.orchestration.execution.pools.tools import ToolPool
from tutelage.orchestration.routing.contract import cheapest
from tutelage.seeds import SeedTree
from tutelage.tools.tool import Tool, ToolError, tool


@dataclass(frozen=True)
class RightPlan:
    """A plan, the sentence that tells its results, and how one wrong node would look."""

    nodes: tuple[Node, ...]
    altered: tuple[int, dict[str, object]]
    """A node, and arguments of it that make the plan wrong."""
    answer: str = ""
    """Where an answer is wanted."""
    spare: tuple[int, ...] = ()
    """Nodes without which the plan is right too."""


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """A value with its placeholders filled."""
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda m: names[m[1]], value)
    if isinstance(value, Mapping):
        return {key: filled(item, names) for key, item in value.items()}
    return [filled(item, names) for item in value] if isinstance(value, list) else value


@tool
def left_out() -> str:
    """Stand for a node that a plan lacks."""
    raise ToolError("it is left out")


def run_plan(
    nodes: Sequence[Node | None], tools: Mapping[str, Tool], names: Mapping[str, str]
) -> dict[int, str]:
    """The results of the nodes that could run; None stands where a node was left out."""
    pool = ToolPool({**tools, "left_out": left_out}, permit=lambda tool, arguments, doubt: "")
    there = [
        Node("left_out") if node is None else replace(node, arguments=filled(node.arguments, names))
        for node in nodes
    ]
    running = Executor(pool, cheapest()).run(Plan("x", tuple(there)), seeds=SeedTree(0))
    done = asyncio.run(running).nodes
    return {node.node: node.output or "" for node in done if node.kept}


def altered(plan: RightPlan) -> tuple[Node, ...]:
    """The plan with its wrong node."""
    place, arguments = plan.altered
    wrong = replace(plan.nodes[place], arguments={**plan.nodes[place].arguments, **arguments})
    return (*plan.nodes[:place], wrong, *plan.nodes[place + 1 :])


def step(tool: str, after: tuple[int, ...] = (), **arguments: object) -> Node:
    """A node with its arguments by name."""
    return Node(tool, arguments, after=after)


_TODAY = Node("today")
_CALENDAR = step("read_file", path="calendar.txt")

RIGHT: dict[str, RightPlan] = {
    "r01": RightPlan(
        (step("read_file", path="notes/{note}"),),
        (0, {"path": "notes/poem.txt"}),
        "You wrote this in {note}:\n<node-0>",
    ),
    "r02": RightPlan(
        (step("convert_units", value="{miles}", from_unit="miles", to_unit="km"),),
        (0, {"from_unit": "km", "to_unit": "miles"}),
        "{miles} miles are <node-0> kilometres.",
    ),
    "r03": RightPlan(
        (step("move_file", source="photos/{photo}", destination="invoices/{photo}"),),
        (0, {"destination": "notes/{photo}"}),
    ),
    "r04": RightPlan(
        (step("fetch_page", path="/weather/{city}"),),
        (0, {"path": "/news"}),
        "The forecast says: <node-0>.",
    ),
    "r05": RightPlan(
        (
            step(
                "query_table",
                sql="SELECT person FROM orders GROUP BY person ORDER BY sum(amount) DESC LIMIT 1",
            ),
        ),
        (0, {"sql": "SELECT person FROM orders GROUP BY person ORDER BY sum(amount) LIMIT 1"}),
        "That is <node-0>.",
    ),
    "r06": RightPlan(
        (step("delete_file", path="invoices/{invoice}"),),
        (0, {"path": "calendar.txt"}),
    ),
    "r07": RightPlan(
        (step("find_files", pattern="photos/*.png"),),
        (0, {"pattern": "photos/*"}),
        "These are png: <node-0>",
    ),
    "r08": RightPlan(
        (step("calculate", expression="{bill} * 1.15 / {n}"),),
        (0, {"expression": "{bill} * 0.15 / {n}"}),
        "With 15 percent on top of {bill}, each of you {n} owes <node-0>.",
    ),
    "r09": RightPlan(
        (
            step("read_file", path="notes/{note}"),
            step("sort_lines", text="<node-0>"),
            step("write_file", path="notes/{note}", text="<node-1>"),
        ),
        (2, {"path": "notes/sorted.txt"}),
    ),
    "r10": RightPlan(
        (
            step("query_table", sql="SELECT sum(amount) FROM orders WHERE person = '{person}'"),
            step("calculate", expression="<node-0> * 0.9"),
        ),
        (1, {"expression": "<node-0> * 0.1"}),
        "Instead of <node-0> it would be <node-1>.",
    ),
    "r11": RightPlan(
        (
            _TODAY,
            step(
                "insert_row",
                table="orders",
                values={
                    "person": "{person}",
                    "item": "{item}",
                    "amount": "{amount}",
                    "day": "<node-0>",
                },
            ),
        ),
        (1, {"table": "people"}),
    ),
    "r12": RightPlan(
        (
            step("read_file", path="logs/server.log"),
            step("read_file", path="logs/backup.log"),
        ),
        (1, {"path": "logs/door.log"}),
        "The server:\n<node-0>\nThe backup:\n<node-1>",
    ),
    "r13": RightPlan(
        (
            step("read_file", path="notes/{note}"),
            step("replace_text", text="<node-0>", old="{line}", new=""),
            step("write_file", path="notes/{note}", text="<node-1>"),
        ),
        (1, {"new": "done"}),
    ),
    "r14": RightPlan(
        (
            step("fetch_page", path="/prices"),
            step("extract_numbers", text="<node-0>"),
            step("sum_numbers", numbers="<node-1>"),
        ),
        (0, {"path": "/weather"}),
        "All of it would cost <node-2>:\n<node-0>",
    ),
    "r15": RightPlan(
        (
            step("query_table", sql="SELECT * FROM people WHERE name = '{person}'"),
            step("fetch_page", path="/weather/<node-0>.city"),
        ),
        (1, {"path": "/prices"}),
        "Where {person} lives: <node-1>",
    ),
    "r16": RightPlan(
        (
            step("query_table", sql="SELECT max(day) FROM orders WHERE person = '{person}'"),
            _TODAY,
            step("days_between", first="<node-0>", second="<node-1>"),
        ),
        (0, {"sql": "SELECT '2020-02-29'"}),
        "The last one came on <node-0>, which is <node-2> days ago.",
    ),
    "r17": RightPlan(
        (
            step("read_file", path="logs/server.log"),
            step("write_file", path="logs/server-before.log", text="<node-0>"),
        ),
        (0, {"path": "logs/door.log"}),
    ),
    "r18": RightPlan(
        (_TODAY, step("days_between", first="<node-0>", second="{date}")),
        (1, {"first": "2020-02-29"}),
        "{event} is on {date}, in <node-1> days.",
    ),
    "r19": RightPlan(
        (
            step("query_table", sql="SELECT name FROM people WHERE city = '{city}'"),
            step("write_file", path="notes/visit.txt", text="<node-0>"),
        ),
        (0, {"sql": "SELECT name FROM people"}),
    ),
    "r20": RightPlan(
        (
            _TODAY,
            step("add_days", date="<node-0>", days="{days}"),
            step("weekday", date="<node-1>"),
        ),
        (1, {"days": 1}),
        "With {days} days the last date is <node-1>, a <node-2>.",
    ),
    "r21": RightPlan(
        (
            _TODAY,
            step("weekday", date="<node-0>"),
            step("fetch_page", path="/news"),
            step("fetch_page", path="/weather/{city}"),
            _CALENDAR,
        ),
        (2, {"path": "/prices"}),
        "Good morning! It is <node-1>, <node-0>.\n<node-2>\n<node-3>\n\n<node-4>",
        spare=(1,),
    ),
    "r22": RightPlan(
        (
            step("add_days", date="{date}", days=7),
            _CALENDAR,
            step("replace_text", text="<node-1>", old="{date}", new="<node-0>"),
            step("write_file", path="calendar.txt", text="<node-2>"),
            step("weekday", date="<node-0>"),
        ),
        (0, {"days": 8}),
        "Done: {event} is now on a <node-4>.",
    ),
    "r23": RightPlan(
        (
            _TODAY,
            step("fetch_page", path="/news"),
            step("write_file", path="notes/news-<node-0>.txt", text="<node-1>"),
        ),
        (2, {"path": "news-<node-0>.txt"}),
    ),
    "r24": RightPlan(
        (
            step("query_table", sql="SELECT city FROM people WHERE name = '{person}'"),
            step("fetch_page", path="/weather/<node-0>"),
            step("extract_numbers", text="<node-1>"),
            step("convert_units", value="<node-2>", from_unit="C", to_unit="F"),
        ),
        (3, {"from_unit": "K"}),
        "<node-1>, in Fahrenheit: <node-3>",
    ),
    "r25": RightPlan(
        (
            step("read_file", path="notes/{note_a}"),
            step("count_words", text="<node-0>"),
            step("read_file", path="notes/{note_b}"),
            step("count_words", text="<node-2>"),
            step("sum_numbers", numbers=["<node-1>", "<node-3>"]),
        ),
        (4, {"numbers": ["<node-1>", "<node-1>", "<node-3>"]}),
        "{note_a} has <node-1> words and {note_b} has <node-3>, together <node-4>.",
    ),
    "r26": RightPlan(
        (
            step("read_file", path="invoices/{invoice}"),
            step("replace_text", text="<node-0>", old="{item}", new="staplers"),
            step("write_file", path="invoices/{invoice}", text="<node-1>"),
            step("move_file", source="<node-2>", destination="invoices/checked-{invoice}"),
        ),
        (1, {"new": "stapler"}),
    ),
    "r27": RightPlan(
        (
            step("query_table", sql="SELECT phone FROM people WHERE name = '{person}'"),
            step("read_file", path="notes/{note}"),
            step("replace_text", text="<node-1>", old="{word}", new="<node-0>"),
            step("write_file", path="notes/{note}", text="<node-2>"),
        ),
        (0, {"sql": "SELECT phone FROM people WHERE name <> '{person}' LIMIT 1"}),
    ),
    "r28": RightPlan(
        (
            step("query_table", sql="SELECT birthday FROM people WHERE name = '{person}'"),
            _TODAY,
            step("days_between", first="<node-0>", second="<node-1>"),
            step("convert_units", value="<node-2>", from_unit="days", to_unit="weeks"),
        ),
        (3, {"to_unit": "hours"}),
        "<node-2> days, which are <node-3> weeks.",
    ),
    "r29": RightPlan(
        (
            *(
                step(
                    "move_file",
                    source=f"photos/{{photo_{key}}}",
                    destination=f"photos/party-{k}.{{ext_{key}}}",
                )
                for k, key in enumerate("abc", 1)
            ),
            step("list_files", folder="photos", after=(0, 1, 2)),
        ),
        (3, {"folder": "."}),
        "There are now: <node-3>",
    ),
    "r30": RightPlan(
        (
            _CALENDAR,
            step("write_file", path="calendar-old.txt", text="<node-0>"),
            step("replace_text", text="<node-0>", old="{date} {time} {event}\n", new=""),
            step("write_file", path="calendar.txt", text="<node-2>", after=(1,)),
        ),
        (1, {"text": "<node-2>"}),
    ),
}
"""By the id of the request."""
