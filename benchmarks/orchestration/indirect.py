"""Requests that seldom name their tools: 260 tools, Zipf-distributed chains, told in other words.

Twenty-six domains have ten tools each. A chain walks from a popular tool to its usual followers,
now and then into another domain. Its instruction asks for each step by a paraphrase, of which some
fit several tools, speaks of the domain by synonyms, tells particulars, names things of other
domains in passing, leaves usual steps out, and turns the order of two clauses round. So neither
shared words nor the nearest plan are enough, and no planner can be right always. `planning.py`
measures on it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tutelage.orchestration.data.workflows import Workflow, sort_workflow
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.seeds import SeedTree

DOMAINS: dict[str, tuple[str, ...]] = {
    "flight": ("plane ticket", "seat on a plane", "way to fly there", "air travel"),
    "hotel": ("room", "place to stay", "accommodation", "somewhere to sleep"),
    "restaurant": ("table", "place to eat", "dinner spot", "bistro"),
    "train": ("rail ticket", "railway connection", "seat on the express", "ride by rail"),
    "car_rental": ("vehicle to drive", "hire car", "set of wheels", "SUV for the week"),
    "meeting": ("appointment", "call with the team", "sync", "gathering at work"),
    "email": ("message", "mail", "letter to my colleague", "note in my inbox"),
    "stock": ("shares", "equity position", "securities", "holding on the market"),
    "bank_account": ("savings", "balance", "money at the bank", "deposit"),
    "insurance": ("policy", "coverage", "protection plan", "claim paper"),
    "recipe": ("dish", "meal to cook", "something for the oven", "cooking idea"),
    "workout": ("training session", "exercise plan", "gym routine", "run"),
    "prescription": ("medicine", "pills", "drug refill", "treatment"),
    "doctor": ("physician", "check-up", "clinic visit", "specialist"),
    "movie": ("film", "picture at the cinema", "something to watch", "screening"),
    "song": ("track", "tune", "piece of music", "something to listen to"),
    "book": ("novel", "title to read", "paperback", "volume"),
    "course": ("class", "lesson", "training online", "lecture series"),
    "job_posting": ("vacancy", "open position", "opening", "role"),
    "house": ("apartment", "flat", "property", "home"),
    "parcel": ("shipment", "package", "delivery", "box in the post"),
    "product": ("item", "article", "gadget", "thing to buy"),
    "ticket": ("support case", "complaint", "issue with the service", "help request"),
    "photo": ("picture", "snapshot", "image from the trip", "portrait"),
    "document": ("file", "report", "paper", "write-up"),
    "weather": ("temperature", "forecast", "rain outlook", "climate conditions"),
}
"""The domains and what people call their things."""
ACTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "search": (
        "Searches for {n} entries by given conditions",
        ("look for a {o}", "see which {o} there is", "find me a {o}", "what is there in the way "
         "of a {o}", "check {o}", "I need options for a {o}"),
    ),
    "create": (
        "Creates a new {n} entry with the given particulars",
        ("set up a {o}", "arrange a {o}", "get me a {o}", "put a {o} in place", "I want a new {o}",
         "add a {o}"),
    ),
    "cancel": (
        "Cancels or deletes an existing {n}",
        ("drop the {o}", "call off the {o}", "I no longer need the {o}", "get rid of the {o}",
         "undo the {o}"),
    ),
    "update": (
        "Modifies the fields of an existing {n}",
        ("change the {o}", "move the {o}", "fix the {o}", "make the {o} different", "adjust my {o}",
         "put in the new particulars of the {o}"),
    ),
    "get_status": (
        "Queries the current status of a {n}",
        ("how is my {o} doing", "check {o}", "where do things stand with the {o}",
         "tell me whether the {o} is fine", "what about the {o}"),
    ),
    "compare": (
        "Compares several {n} entries and ranks them",
        ("which {o} is better", "weigh one {o} against another", "pick the best {o}",
         "tell me the differences between each {o}", "help me choose a {o}"),
    ),
    "pay": (
        "Pays for a {n} with the stored payment method",
        ("settle the bill for the {o}", "take the {o} off my card", "cover the {o}",
         "transfer what the {o} costs", "get me a {o}"),
    ),
    "share": (
        "Shares a {n} with other people",
        ("let {p} know about the {o}", "pass the {o} on to {p}", "send {p} the {o}",
         "show {p} the {o}", "forward the {o}"),
    ),
    "review": (
        "Gives a rating and a comment for a {n}",
        ("say what I thought of the {o}", "leave some stars for the {o}",
         "write an opinion about the {o}", "rate the {o}"),
    ),
    "remind": (
        "Sets a reminder for a {n} at a given time",
        ("do not let me forget the {o}", "ping me about the {o} on {d}", "alert me before the {o}",
         "put the {o} on my radar for {d}"),
    ),
}  # fmt: skip
"""What can be done, as the catalog says it and as people ask for it."""
PEOPLE = ("Anna", "Bilal", "my sister", "the boss", "Chen", "our guests", "Dr. Okafor", "the crew")
PLACES = ("Lisbon", "Osaka", "Denver", "Nairobi", "the centre", "Leeds", "Lima", "Oslo")
DAYS = ("Monday", "the 3rd of May", "next week", "Friday night", "July 14th", "tomorrow", "10 a.m.")
ASIDES = (
    "I came back from {c} and heard a lot about a {x}.",
    "{p} told me about a {x}, but that is another story.",
    "My account number is {k}.",
    "We are {k} people and the budget is {k} dollars.",
    "It should all be done by {d}.",
    "Last year the {x} was a disaster.",
    "Please be quick, {p} is waiting.",
)
PARTICULARS = ("in {c}", "for {d}", "for {p}", "under {k} euros", "with number {k}", "", "", "")
JOINS = (". Then ", ", and ", ", then ", ". After that, ", "; also ", ". Next, ")
FOLLOWERS = (0.55, 0.27, 0.18)
ELSEWHERE, LEFT_OUT, TURNED = 0.12, 0.2, 0.1
SCENARIOS, REPEATED, HABIT = 450, 0.75, 0.6
"""Known chains, how often one of them is meant, and how often a step of it is told as usual."""


def tool_name(domain: str, action: str) -> str:
    """`search_flight`."""
    return f"{action}_{domain}"


def catalog() -> Catalog:
    """The 260 tools."""
    return Catalog(
        tuple(
            CatalogTool(
                tool_name(domain, action),
                told.format(n=domain.replace("_", " ")) + ".",
                (f"{domain}_id",) if action not in ("search", "create") else (f"{domain}_query",),
                (f"{domain}_{action}_result",),
            )
            for domain in DOMAINS
            for action, (told, _) in ACTIONS.items()
        )
    )


def generate(count: int, seeds: SeedTree) -> list[Workflow]:
    """`count` chains of 1 to 5 steps; `REPEATED` of them are among the known scenarios."""
    usual = _usual(seeds.child("followers").python())
    draw = seeds.child("scenarios").python()
    known = [
        Scenario(walk, left_out, tuple(draw.randrange(64) for _ in walk))
        for walk, left_out in (_walk(usual, draw) for _ in range(SCENARIOS))
    ]
    weights = [1 / (k + 10) for k in range(SCENARIOS)]
    made: list[Workflow] = []
    for number in range(count):
        draw = seeds.child("workflow", number).python()
        if draw.random() < REPEATED:
            scenario = draw.choices(known, weights)[0]
        else:
            walk, left_out = _walk(usual, draw)
            scenario = Scenario(walk, left_out, tuple(draw.randrange(64) for _ in walk))
        made.append(_workflow(scenario, draw, str(number)))
    return made


Step = tuple[str, str]


class Scenario(NamedTuple):
    """A chain with the way in which each step is usually told."""

    steps: list[Step]
    left_out: set[int]
    habits: tuple[int, ...]


def _usual(draw: random.Random) -> dict[Step, list[Step]]:
    """The usual followers of each tool, the likeliest first."""
    found: dict[Step, list[Step]] = {}
    for domain in DOMAINS:
        for action in ACTIONS:
            others = [a for a in ACTIONS if a != action]
            found[domain, action] = [(domain, a) for a in draw.sample(others, len(FOLLOWERS))]
            if draw.random() < 0.5:
                far = draw.choice([d for d in DOMAINS if d != domain])
                found[domain, action][1] = (far, draw.choice(list(ACTIONS)))
    return found


def _walk(usual: dict[Step, list[Step]], draw: random.Random) -> tuple[list[Step], set[int]]:
    """Steps, and which of them nobody asks for in words."""
    domains, actions = list(DOMAINS), list(ACTIONS)
    size = draw.choices((1, 2, 3, 4, 5), (0.08, 0.32, 0.32, 0.2, 0.08))[0]
    domain = draw.choices(domains, [1 / (k + 4) for k in range(len(domains))])[0]
    steps = [(domain, draw.choices(actions, [1 / (k + 1) for k in range(len(actions))])[0])]
    left_out: set[int] = set()
    while len(steps) < size:
        if draw.random() < ELSEWHERE:
            step, likely = (draw.choice(domains), draw.choice(actions)), False
        else:
            place = draw.choices(range(len(FOLLOWERS)), FOLLOWERS)[0]
            step, likely = usual[steps[-1]][place], place == 0
        if step in steps:
            break
        if likely and draw.random() < LEFT_OUT and len(steps) - 1 not in left_out:
            left_out.add(len(steps))
        steps.append(step)
    return steps, left_out


def _workflow(scenario: Scenario, draw: random.Random, name: str) -> Workflow:
    names = [tool_name(*step) for step in scenario.steps]
    parents = [[i - 1] if i else [] for i in range(len(names))]
    said = [
        _clause(domain, action, habit, draw)
        for i, ((domain, action), habit) in enumerate(
            zip(scenario.steps, scenario.habits, strict=True)
        )
        if i not in scenario.left_out
    ]
    return sort_workflow(_instruction(said, draw), names, parents, name=name)


def _instruction(said: Sequence[str], draw: random.Random) -> str:
    text, place = "", 0
    while place < len(said):
        if text:
            text += draw.choice(JOINS)
        if place + 1 < len(said) and draw.random() < TURNED:
            text += f"{said[place + 1]}, but before that {said[place]}"
            place += 2
        else:
            text += said[place]
            place += 1
    parts = [text[:1].upper() + text[1:] + "."]
    for _ in range(draw.choice((0, 1, 1, 2))):
        parts.insert(draw.randrange(2) * len(parts), draw.choice(ASIDES))
    return _filled(" ".join(parts), draw)


def _clause(domain: str, action: str, habit: int, draw: random.Random) -> str:
    if draw.random() > HABIT:
        habit = draw.randrange(64)
    things = (domain.replace("_", " "), *DOMAINS[domain])
    ways = ACTIONS[action][1]
    clause = ways[habit // 8 % len(ways)].replace("{o}", things[habit % 8 % len(things)])
    return f"{clause} {draw.choice(PARTICULARS)}".strip()


def _filled(text: str, draw: random.Random) -> str:
    things = [thing for named in DOMAINS.values() for thing in named]
    slots = {"{p}": PEOPLE, "{c}": PLACES, "{d}": DAYS, "{x}": things}
    for slot, values in slots.items():
        while slot in text:
            text = text.replace(slot, draw.choice(values), 1)
    while "{k}" in text:
        text = text.replace("{k}", str(draw.randrange(2, 9000)), 1)
    return text
