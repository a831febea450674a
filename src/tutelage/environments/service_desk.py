"""A shop's service desk: actions cannot be undone, so the agent must check first.

A customer makes two or three requests. The orders, the stock and the refunds of the shop are a
SQLite database in memory; the tools change it even if the rules forbid the change. The reward is 1
if the database ends as the rules require, less a cost for each call.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tutelage.environments.built_in import (
    ADJECTIVES,
    FIRST,
    LAST,
    NOUNS,
    ToolWorld,
    call_message,
    check_argument,
    draw_tasks,
    draw_words,
)
from tutelage.environments.protocol import EnvironmentFactory, Observation
from tutelage.tools import tool
from tutelage.types import Message, Task

COST = 0.02
"""Cost of a call."""
REFUND_DAYS = 14
ALL_ALLOWED, NONE_ALLOWED = 0.45, 0.2
"""Shares of messages whose requests are all allowed, and all forbidden."""
THREE = 0.25
"""Share of messages with three requests; all others have two."""
UNSEEN = 1 / 3
"""Share of test messages with wordings that occur in no other split."""
TOOLS = ("find", "check", "cancel", "exchange", "refund")
RULES = (
    "Rules: cancel only new orders; refund only orders sent at most "
    f"{REFUND_DAYS} days ago; exchange only for items in stock."
)
GREETINGS = ("{} here.", "My name is {}.", "This is {}."), ("{} writing.", "I am {}.")
"""Openings of messages: in all splits, and in the test only."""
REQUESTS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "cancel": (
        ("Cancel the {item}.", "Please cancel my {item}.", "I no longer want the {item}."),
        ("Stop the order of the {item}.", "Do not send the {item}."),
    ),
    "refund": (
        ("Refund the {item}.", "Please refund my {item}.", "I want my money back for the {item}."),
        ("Pay me back for the {item}.", "A refund for the {item}, please."),
    ),
    "exchange": (
        ("Exchange the {item} for a {new}.", "Swap my {item} for a {new}."),
        ("Instead of the {item} I want a {new}.", "Change the {item} to a {new}."),
    ),
}
"""Wordings of requests: in all splits, and in the test only."""


def create_database(task: Task) -> sqlite3.Connection:
    """Create a database with the task's orders and stock."""
    shop = sqlite3.connect(":memory:", check_same_thread=False)
    shop.executescript(
        "CREATE TABLE orders (id TEXT, customer TEXT, item TEXT, days INTEGER, state TEXT);"
        "CREATE TABLE stock (item TEXT, count INTEGER);"
        "CREATE TABLE refunds (id TEXT);"
    )
    shop.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, 'open')", task["orders"])
    shop.executemany("INSERT INTO stock VALUES (?, ?)", task["stock"].items())
    return shop


def change_order(shop: sqlite3.Connection, action: str, order: str, new_item: str = "") -> str:
    """Cancel, refund or exchange an open order, regardless of the rules, and return the new state.

    An order is changed at most once.
    """
    row = shop.execute("SELECT state FROM orders WHERE id = ?", (order,)).fetchone()
    if row is None or row[0] != "open":
        return f"already {row[0]}" if row else "no such order"
    if action == "exchange":
        sold = shop.execute("UPDATE stock SET count = count - 1 WHERE item = ?", (new_item,))
        if not sold.rowcount:
            return "no such item"
        shop.execute("UPDATE orders SET item = ? WHERE id = ?", (new_item, order))
    if action == "refund":
        shop.execute("INSERT INTO refunds VALUES (?)", (order,))
    state = {"cancel": "cancelled", "exchange": "exchanged", "refund": "refunded"}[action]
    shop.execute("UPDATE orders SET state = ? WHERE id = ?", (state, order))
    return state


def read_database(shop: sqlite3.Connection) -> list[list[Any]]:
    """Return all rows of the database."""
    tables = ("orders", "stock", "refunds")
    return [shop.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables]


class ServiceDeskEnvironment(ToolWorld):
    """An episode at a service desk, with a message from one customer."""

    max_turns = 12
    cost_of_call = COST

    async def reset(self, task: Task, seed: int) -> Observation:
        """Create the shop's database from the task; the seed is not used."""
        self.tools = {name: getattr(self, name) for name in TOOLS}
        right, self.shop = create_database(task), create_database(task)
        for request in task["requests"]:
            if request["allowed"]:
                change_order(right, request["action"], request["order"], request["new"])
        self.wanted = read_database(right)
        right.close()
        return Observation(tools=tuple(tool.spec for tool in self.tools.values()))

    async def close(self) -> None:
        """Close the database."""
        self.shop.close()

    def judge(self, answer: str) -> bool:
        """Return True if the database is in the state that the rules require."""
        return read_database(self.shop) == self.wanted

    @tool(inline=True)
    def find(self, name: str) -> str:
        """Find the orders of a customer."""
        rows = self.shop.execute("SELECT id, item FROM orders WHERE customer = ?", (name,))
        return ", ".join(f"{order} {item}" for order, item in rows) or "no orders"

    @tool(inline=True)
    def check(self, what: str) -> str:
        """Check the state of an order, or the stock of an item."""
        order = self.shop.execute("SELECT state, days FROM orders WHERE id = ?", (what,)).fetchone()
        if order is not None:
            state, days = order
            shown = "new" if days is None else f"sent {days} days ago"
            return shown if state == "open" else state
        stock = self.shop.execute("SELECT count FROM stock WHERE item = ?", (what,)).fetchone()
        return "unknown" if stock is None else f"{stock[0]} in stock"

    @tool(inline=True)
    def cancel(self, order: str) -> str:
        """Cancel an order; cannot be undone."""
        return change_order(self.shop, "cancel", order)

    @tool(inline=True)
    def exchange(self, order: str, item: str) -> str:
        """Exchange an order's item for another item; cannot be undone."""
        return change_order(self.shop, "exchange", order, item)

    @tool(inline=True)
    def refund(self, order: str) -> str:
        """Refund an order; cannot be undone."""
        return change_order(self.shop, "refund", order)


def draw_fields(split: str, rng: Random) -> dict[str, Any]:
    """Draw the fields of a task: question, wording, customer, orders, stock, requests."""
    count, share = 3 if rng.random() < THREE else 2, rng.random()
    allowed = [share < ALL_ALLOWED] * count
    if share >= ALL_ALLOWED + NONE_ALLOWED:
        allowed = [True, False, rng.random() < 0.5][:count]
        rng.shuffle(allowed)
    nouns = " ".join(NOUNS.values())
    items: dict[str, None] = {}
    while len(items) < 2 * count + 2:
        items[draw_words(split, rng, ADJECTIVES, nouns)] = None
    unused = [*items]
    names: dict[str, None] = {}
    while len(names) < 2:
        names[draw_words(split, rng, FIRST, LAST)] = None
    customer, other = names
    ids = [str(number) for number in rng.sample(range(10, 100), count + 2)]
    orders: list[list[Any]] = []
    stock: dict[str, int] = {}
    requests: list[dict[str, Any]] = []
    unseen = split == "test" and rng.random() < UNSEEN
    said = [rng.choice(GREETINGS[unseen]).format(customer)]
    for order, fine in zip(ids, allowed, strict=False):
        action, item = rng.choice([*REQUESTS]), unused.pop()
        new = unused.pop() if action == "exchange" else ""
        days = rng.choice([None, rng.randint(2, 40)])
        if action == "exchange":
            stock[new] = rng.randint(1, 9) if fine else 0
        elif action == "cancel":
            days = None if fine else rng.randint(2, 40)
        else:
            days = rng.randint(2, REFUND_DAYS) if fine else rng.randint(REFUND_DAYS + 1, 40)
        orders.append([order, customer, item, days])
        requests.append({"action": action, "order": order, "new": new, "allowed": fine})
        said.append(rng.choice(REQUESTS[action][unseen]).format(item=item, new=new))
    orders.append([ids[-2], customer, unused.pop(), None])
    orders.append([ids[-1], other, unused.pop(), None])
    rng.shuffle(orders)
    question = f"{RULES}\n{' '.join(said)}"
    return {
        "question": question,
        "wording": "unseen" if unseen else "seen",
        "customer": customer,
        "orders": orders,
        "stock": stock,
        "requests": requests,
    }


def expert(task: Task, messages: Sequence[Message]) -> Message:
    """Return the next call of an expert who finds the orders, checks each rule and performs only
    allowed actions."""
    calls: list[tuple[str, dict[str, str]]] = [("find", {"name": task["customer"]})]
    for request in task["requests"]:
        action, order, new = request["action"], request["order"], request["new"]
        calls.append(("check", {"what": new or order}))
        if request["allowed"]:
            calls.append((action, {"order": order} | ({"item": new} if new else {})))
    turn = sum(message.role == "assistant" for message in messages)
    if turn >= len(calls):
        return Message("assistant", "Done.")
    name, arguments = calls[turn]
    return call_message(name, turn, **arguments)


def make_factory(argument: str, kwargs: Mapping[str, Any]) -> EnvironmentFactory:
    """Return the factory of `service_desk`. Raises `ConfigError` for an argument or options."""
    check_argument("service_desk", argument, ("",), kwargs)
    return EnvironmentFactory(
        name="service_desk",
        make=ServiceDeskEnvironment,
        tools=tuple(getattr(ServiceDeskEnvironment, name).spec for name in TOOLS),
        tasks=lambda split, n, seed: draw_tasks("service_desk", split, n, seed, draw_fields),
        expert=expert,
    )
