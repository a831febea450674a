"""What plans get beyond copied spans: queries over tables, files named by what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.orchestration.development.run import HERE, brought_about, read_rows

from tutelage.orchestration.data.request_values import words_of_requests
from tutelage.orchestration.data.tool_requests import tool_requests
from tutelage.orchestration.execution.pools.tools import described
from tutelage.orchestration.kit import make_tools
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.plan.queries import query_for, tables_of
from tutelage.orchestration.plan.spans import by_kind
from tutelage.orchestration.plan.titles import titles
from tutelage.orchestration.planner.arguments import ArgumentScorer, unused, with_searches
from tutelage.orchestration.planner.described import read_request
from tutelage.seeds import SeedTree

CATALOG = Catalog(described(make_tools(Path(), "http://127.0.0.1:1", "2026-05-14")))
TABLES = {"members": ("name", "city", "phone"), "sales": ("person", "item", "amount", "day")}


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("What is Ada Byron's phone?", "SELECT phone FROM members WHERE name = 'Ada Byron'"),
        ("Where does Ada live?", "SELECT city FROM members WHERE name LIKE 'Ada%'"),
        ("Who lives in Lima?", "SELECT name FROM members WHERE city = 'Lima'"),
        ("How many members are there?", "SELECT count(*) FROM members"),
        ("What did Ada Byron buy?", "SELECT item FROM sales WHERE person = 'Ada Byron'"),
        (
            "How much has Ada Byron spent?",
            "SELECT sum(amount) FROM sales WHERE person = 'Ada Byron'",
        ),
        ("What is the highest amount of all sales?", "SELECT max(amount) FROM sales"),
        ("Phone of 'Conan O'Brien'", "SELECT phone FROM members WHERE name = 'Conan O''Brien'"),
        ("Any news today?", None),
        ("How many words has notes/a.txt?", None),
    ],
)
def test_plain_questions_have_a_query(text: str, query: str | None) -> None:
    assert query_for(text, TABLES) == query


def test_tables_are_read_from_a_description() -> None:
    tool = CatalogTool(
        "ask", "Ask with SQL. Tables: a(x, y), b(z, w, v); one column is none: c(q)."
    )
    assert tables_of(tool) == {"a": ("x", "y"), "b": ("z", "w", "v")}
    assert tables_of(CatalogTool("add", "Add up (all of) them.")) == {}


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("What is on my shopping list?", "*shopping*"),
        ("Read me the to-do list", "*to*do*"),
        ("Print the notes from April", "*april*"),
        ("Open invoice 1041", "*invoice*1041*"),
        ("Read the poem", "*poem*"),
        ("Read the file", None),
        ("What is in the photos folder?", None),
        ("Read notes/poem.txt", None),
    ],
)
def test_files_are_named_by_what_they_are(text: str, pattern: str | None) -> None:
    assert [span.value for span in titles(text)] == ([] if pattern is None else [pattern])


def filled(text: str, *tools: str) -> tuple[list[dict[str, object]], tuple[str, ...]]:
    """The arguments of a chain, and what is missing."""
    nodes = tuple(Node(name, after=(i - 1,) if i else ()) for i, name in enumerate(tools))
    plan, missing = ArgumentScorer().fill(Plan(text, nodes), CATALOG)
    return [dict(node.arguments) for node in plan.nodes], missing


@pytest.mark.parametrize(
    ("text", "tools", "wanted"),
    [
        (
            "Read my shopping list", ("read_file",),
            [{"pattern": "*shopping*"}, {"path": "<node-0>"}],
        ),
        ("What is inside the photos folder?", ("list_files",), [{"folder": "photos"}]),
        ("Put a/b.txt into the archive folder", ("move_file",),
         [{"source": "a/b.txt", "destination": "archive"}]),
        ("Twelve inches in cm", ("convert_units",),
         [{"value": 12, "from_unit": "inches", "to_unit": "cm"}]),
        ("What was the date 9 days ago?", ("today", "add_days"),
         [{}, {"date": "<node-0>", "days": -9}]),
        ("How many days ago was 2020-01-02?", ("today", "days_between"),
         [{}, {"first": "2020-01-02", "second": "<node-0>"}]),
        ("Is it raining in Lima?", ("fetch_page",), [{"path": "/weather/Lima"}]),
    ],
)  # fmt: skip
def test_arguments_are_found_in_everyday_words(
    text: str, tools: tuple[str, ...], wanted: list[dict[str, object]]
) -> None:
    assert filled(text, *tools) == (wanted, ())


def test_nothing_is_written_to_a_file_that_only_a_search_could_find() -> None:
    _, missing = filled("Write 'tea' to my shopping list", "write_file")
    assert missing == ("write_file.path",)


def test_particulars_that_no_argument_has_are_counted() -> None:
    text = "Read a/b.txt, then tell me the weekday of 2020-01-02"
    read = Node("read_file", {"path": "a/b.txt"})
    assert unused(Plan(text, (read,)), CATALOG) == 1.0
    assert unused(Plan(text, (read, Node("weekday", {"date": "2020-01-02"}))), CATALOG) == 0.0
    assert unused(Plan(text, (Node("t"),)), Catalog((CatalogTool("t", "T."),))) == 0.0


def test_names_count_by_their_kind_but_not_where_a_sentence_begins() -> None:
    assert by_kind("Where does Ada Byron live?") == by_kind("Where does Bram live?")
    assert by_kind("Read it on Monday") == "Read it on Monday"


def test_each_tool_is_asked_for_by_its_own_words_and_once() -> None:
    made = tool_requests(CATALOG, 200, SeedTree(2), "known")
    asked = {w.instruction for w in made if w.plan.nodes[-1].tool == "extract_numbers"}
    assert asked
    assert not any("alphabet" in text for text in asked)
    assert all(len({*w.tools}) == len(w.tools) for w in made)


def test_some_ways_to_ask_are_held_out() -> None:
    held = [way for group in words_of_requests()["groups"] for way in group.get("held", ())]
    known = {way for group in words_of_requests()["groups"] for way in group["ways"]}
    assert len(held) > 80
    assert not known & {*held}


def test_a_search_before_a_plan_makes_it_no_other_plan() -> None:
    plan = Plan("Read b.txt", (Node("read_file", {"path": "b.txt"}),))
    assert [node.tool for node in with_searches(plan, CATALOG).nodes] == ["find_files", "read_file"]


def test_what_the_planner_is_developed_on_is_none_of_what_it_is_measured_on() -> None:
    names = ("developed", "kept", "outside")
    own = [request for name in names for request, _ in read_rows(name)]
    rows = (HERE.parent / "requests/kit.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(own) == len({*own}) == 118
    assert not {*own} & {json.loads(row)["request"] for row in rows}


@pytest.mark.full
@pytest.mark.parametrize("name", ["developed", "kept"])
def test_the_plans_of_the_development_requests_run(name: str) -> None:
    for request, plan in read_rows(name):
        assert plan is None or brought_about(plan) is not None, request


class _CountedSchema(dict[str, object]):
    """A schema that counts how often it is looked into."""

    reads = 0

    def get(self, key: str, default: object = None) -> object:
        _CountedSchema.reads += 1
        return super().get(key, default)


def test_the_tools_of_a_catalog_are_not_looked_through_for_each_request() -> None:
    fields = {"properties": {"path": {"type": "string"}}, "required": ["path"]}
    tools = (
        CatalogTool(f"tool_{n}", "Reads it.", schema=_CountedSchema(fields)) for n in range(300)
    )
    catalog = Catalog(tuple(tools))
    requests = [f"Read notes/{n}.txt" for n in range(20)]
    _CountedSchema.reads = 0
    for text in requests:
        read_request(text, catalog)
        plan, missing = ArgumentScorer().fill(Plan(text, (Node("tool_7"),)), catalog)
        assert not missing
        assert plan.nodes[0].arguments == {"path": text.removeprefix("Read ")}
    assert _CountedSchema.reads < 2 * len(catalog) + 10 * len(requests)


@pytest.mark.parametrize(
    ("text", "tool_name", "values"),
    [
        (
            'Save the text "Meet me. Call Ana" to c.txt',
            "write_file",
            ["Meet me. Call Ana", "c.txt"],
        ),
        ("Write to a/b.txt: Call Ana. Meet her", "write_file", ["Call Ana. Meet her", "a/b.txt"]),
        ("Read: Note.txt", "read_file", ["Note.txt"]),
        ("It is there. Note.txt, read it", "read_file", ["Note.txt"]),
        ("Read 'Note.txt'", "read_file", ["Note.txt"]),
        ("Count the words of the text: see 'a.txt' first", "count_words", ["see 'a.txt' first"]),
        ("Count the words of the text: see 'a.txt'", "count_words", ["see 'a.txt'"]),
        ("Count the words of the text: 'a.txt' is old", "count_words", ["'a.txt' is old"]),
    ],
)
def test_a_value_is_written_as_in_the_request(text: str, tool_name: str, values: list[str]) -> None:
    made, missing = filled(text, tool_name)
    given = {str(value) for each in made for value in each.values()} - {"<node-0>"}
    assert (sorted(given), missing) == (sorted(values), ())
