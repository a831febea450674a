"""Arguments that a trained planner copies: spans of a request, and results of earlier nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tutelage.errors import ModelError
from tutelage.orchestration.data.tool_requests import tool_requests
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.execution.pools.tools import described
from tutelage.orchestration.kit import make_tools
from tutelage.orchestration.plan.arguments import tool_arguments
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.plan.parameters import gives, parameters
from tutelage.orchestration.plan.spans import by_kind, spans
from tutelage.orchestration.planner import saving
from tutelage.orchestration.planner.arguments import ArgumentScorer, fit_scorer
from tutelage.orchestration.planner.described import read_request, without_quotes
from tutelage.orchestration.planner.logistic import fit_logistic
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.orchestration.planner.origins import Origins
from tutelage.orchestration.planner.pairs import equal
from tutelage.seeds import SeedTree
from tutelage.tools import tool

TOOLS = make_tools(Path(), "http://127.0.0.1:1", "2026-05-14")
CATALOG = Catalog(described(TOOLS))


def filled(text: str, *tools: str) -> tuple[list[dict[str, object]], tuple[str, ...]]:
    """The arguments of a chain, and what is missing."""
    nodes = tuple(Node(name, after=(i - 1,) if i else ()) for i, name in enumerate(tools))
    plan, missing = ArgumentScorer().fill(Plan(text, nodes), CATALOG)
    return [dict(node.arguments) for node in plan.nodes], missing


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("Say 'good night' to her", "quoted", "good night"),
        ("Load https://example.org/a?b=1.", "url", "https://example.org/a?b=1"),
        ("Write to ana@example.org", "email", "ana@example.org"),
        ("Open work/plan.txt now", "path", "work/plan.txt"),
        ("Open plan.txt now", "file", "plan.txt"),
        ("Born 3 May 1980", "date", "1980-05-03"),
        ("Since 2024-02-29", "date", "2024-02-29"),
        ("Work out (3+4)*2", "expression", "(3+4)*2"),
        ("Make 12% of 300", "expression", "12 / 100 * 300"),
        ("Take 3 plus 4", "expression", "3 + 4"),
        ("Wait 2.5 hours", "number", 2.5),
        ("Wait seven hours", "number", 7),
        ("Total 5, 6 and 7", "numbers", [5, 6, 7]),
        ("Add up -5, 3 and 2.5.", "numbers", [-5, 3, 2.5]),
        ("Add up 5, 3 and −2.", "numbers", [5, 3, -2]),
        ("Sum the numbers 4, -6 and 10", "numbers", [4, -6, 10]),
        ("Add 1,2,3", "numbers", [1, 2, 3]),
        ("Add 1,500 and 2", "numbers", [1500, 2]),
        ("What is 10 − 3?", "expression", "10 - 3"),
        ("What is −3 + 4?", "expression", "-3 + 4"),
        ("What is 3/4/2?", "expression", "3/4/2"),
        ("Save '3,5' and wait 4 days", "number", 4),
        ("Any *.png there", "pattern", "*.png"),
        ("Show the jpg files", "pattern", "*.jpg"),
        ("Ask Ada Byron", "name", "Ada Byron"),
        ("Tell him that dinner is ready", "clause", "dinner is ready"),
    ],
)
def test_spans_have_a_kind_and_a_value(text: str, kind: str, value: object) -> None:
    found = [span.value for span in spans(text) if span.kind == kind]
    assert value in found or (kind == "name" and f"Ask {value}" in found)


@pytest.mark.parametrize(
    "text",
    [
        "What is 3,5 * 2?",
        "Convert 1,5 km to miles",
        "Add 5 and 2,5",
        "Take 1.500,50 away",
        "Wait 0,500 hours",
        "Add 10,20,300",
        "Take 1.234.567",
        "How many days are there from 3/4/2026 to 5/4/2026?",
        "What is 3-4-2026?",
        "Wait 1e5 hours",
    ],
)
def test_no_part_of_a_number_is_read_as_a_number(text: str) -> None:
    assert not {span.kind for span in spans(text)} & {"expression", "number", "numbers"}


def test_no_part_of_a_list_is_read_as_a_list() -> None:
    found = [span.value for span in spans("Add 5, 3 and 2e3") if span.kind == "numbers"]
    assert found == []


def test_a_number_of_two_readings_is_missing_and_no_other_takes_its_place() -> None:
    assert filled("Convert 1,5 km to miles", "convert_units")[1] == ("convert_units.value",)
    assert filled("What is 3,5 * 2?", "calculate")[1] == ("calculate.expression",)
    assert filled("Add 5 and 2,5", "sum_numbers")[1] == ("sum_numbers.numbers",)


def test_what_stands_for_a_kind_takes_the_place_of_the_words() -> None:
    assert by_kind("Open work/plan.txt") == by_kind("Open old/list.csv") == "Open  kindpath "


def test_kinds_of_a_parameter_come_from_its_schema() -> None:
    kinds = {t.name: {p.name: set(p.kinds) for p in parameters(t)} for t in CATALOG.tools}
    assert kinds["weekday"]["date"] == {"date"}
    assert kinds["calculate"]["expression"] == {"expression"}
    assert kinds["add_days"]["days"] == {"number"}
    assert "path" in kinds["read_file"]["path"]
    assert gives(CATALOG["today"]) == "date"
    assert gives(CATALOG["extract_numbers"]) == "numbers"


@pytest.mark.parametrize(
    ("text", "tools", "wanted"),
    [
        ("What is 12 * 7?", ("calculate",), [{"expression": "12 * 7"}]),
        ("Which weekday was 3 May 1980?", ("weekday",), [{"date": "1980-05-03"}]),
        (
            "How many feet are there in 3 metres?", ("convert_units",),
            [{"value": 3, "from_unit": "metres", "to_unit": "feet"}],
        ),
        (
            "How many words has work/plan.txt?", ("read_file", "count_words"),
            [{"path": "work/plan.txt"}, {"text": "<node-0>"}],
        ),
        (
            "How many days until 2027-01-01?", ("today", "days_between"),
            [{}, {"first": "<node-0>", "second": "2027-01-01"}],
        ),
        ("How is the weather in Lima?", ("fetch_page",), [{"path": "/weather/Lima"}]),
        (
            "Sort work/a.txt and save it as work/b.txt", ("read_file", "sort_lines", "write_file"),
            [{"path": "work/a.txt"}, {"text": "<node-0>"},
             {"path": "work/b.txt", "text": "<node-1>"}],
        ),
        (
            "Throw plan.txt away", ("delete_file",),
            [{"pattern": "plan.txt"}, {"path": "<node-0>"}],
        ),
    ],
)  # fmt: skip
def test_arguments_are_copied(
    text: str, tools: tuple[str, ...], wanted: list[dict[str, object]]
) -> None:
    assert filled(text, *tools) == (wanted, ())


def test_a_search_put_first_moves_references_in_lists_too() -> None:
    @tool
    def join(parts: list[str]) -> str:
        """Join texts.

        Args:
            parts: The texts.
        """
        return "".join(parts)

    catalog = Catalog(described({**TOOLS, "join": join}))
    known = [
        Workflow(
            Plan(
                f"Read the file work/{name}.txt and join its texts",
                (
                    Node("read_file", {"path": f"work/{name}.txt"}),
                    Node("join", {"parts": ["<node-0>"]}),
                ),
            )
        )
        for name in ("plan", "diary", "list")
    ]
    asked = Plan(
        "Read the file todo.txt and join its texts", (Node("read_file"), Node("join", after=(0,)))
    )
    plan, _ = fit_scorer(known, catalog).fill(asked, catalog)
    assert [node.tool for node in plan.nodes] == ["find_files", "read_file", "join"]
    assert plan.nodes[1].arguments == {"path": "<node-0>"}
    assert plan.nodes[2].arguments == {"parts": ["<node-1>"]}


@pytest.mark.parametrize(
    ("made", "wanted", "same"),
    [(1, True, False), (False, 0, False), (True, True, True), ("true", True, True), (1, 1.0, True)],
)
def test_a_truth_is_no_number(made: object, wanted: object, same: bool) -> None:
    assert equal(made, wanted) is same


def test_what_a_request_does_not_say_is_missing_by_name() -> None:
    assert filled("Read it", "read_file") == ([{}], ("read_file.path",))


def test_a_scorer_learns_from_plans_with_arguments_and_is_the_same_each_time() -> None:
    made = tool_requests(CATALOG, 40, SeedTree(1), "known")
    scorer = fit_scorer(made, CATALOG)
    assert scorer == fit_scorer(made, CATALOG)
    assert scorer != ArgumentScorer()
    bare = [replace(w.plan.nodes[0], arguments={}) for w in made]
    assert fit_scorer([replace(made[0], plan=Plan("x", (bare[0],)))], CATALOG) == ArgumentScorer()


def test_requests_of_two_parts_have_no_value_in_common() -> None:
    known = {w.instruction for w in tool_requests(CATALOG, 60, SeedTree(1), "known")}
    new = {w.instruction for w in tool_requests(CATALOG, 60, SeedTree(1), "new")}
    assert known
    assert not any("summary." in text for text in known)
    assert any("summary." in text for text in new)


def test_a_search_that_found_one_thing_gives_its_name() -> None:
    @tool
    def read(path: str) -> str:
        """Read a file.

        Args:
            path: Such as a/b.txt.
        """
        return path

    assert tool_arguments({"path": "<node-0>"}, {0: '["a/b.txt"]'}, read) == {"path": "a/b.txt"}
    both = '["a/b.txt", "c.txt"]'
    assert tool_arguments({"path": "<node-0>"}, {0: both}, read) == {"path": both}
    text = {"path": "see <node-0>"}
    assert tool_arguments(text, {0: '["a/b.txt"]'}, read) == {"path": 'see ["a/b.txt"]'}


@tool
def area(width: float, height: float) -> float:
    """Area of a wall.

    Args:
        width: Width in metres.
        height: Height in metres.
    """
    return width * height


@tool
def paint(area: float) -> str:
    """Litres of paint for an area.

    Args:
        area: Area in square metres.
    """
    return f"{area / 10:g} litres"


PAINTING = Catalog(described({"area": area, "paint": paint}))
WALLS = [(3, 4), (5, 2), (7, 6), (8, 3), (9, 4), (2, 6), (11, 3), (12, 5), (4, 7), (6, 5), (10, 8)]
FORMS = (
    "How much paint does a wall of {} by {} metres need?",
    "Paint for a wall {} metres wide and {} metres high",
    "I want to paint a wall that is {} by {}. How many litres?",
)


def painted(text: str, width: float, height: float) -> Workflow:
    """A plan in which the paint takes what the area is."""
    nodes = (
        Node("area", {"width": width, "height": height}),
        Node("paint", {"area": "<node-0>"}),
    )
    return Workflow(Plan(text, nodes))


def bare(plan: Plan) -> Plan:
    """The same tools, with what waits for what, and no arguments."""
    nodes = [replace(node, arguments={}, after=node.parents) for node in plan.nodes]
    return Plan(plan.instruction, tuple(nodes))


def paintings(count: int) -> list[Workflow]:
    return [painted(FORMS[i % 3].format(*wall), *wall) for i, wall in enumerate(WALLS[:count])]


@pytest.mark.parametrize("form", FORMS)
def test_an_argument_that_plans_take_from_a_result_gets_no_number(form: str) -> None:
    scorer = fit_scorer(paintings(11), PAINTING)
    asked = painted(form.format(9, 14), 9, 14)
    plan, missing = scorer.fill(bare(asked.plan), PAINTING)
    assert [node.arguments for node in plan.nodes] == [n.arguments for n in asked.plan.nodes]
    assert not missing


def test_a_number_is_not_given_again_where_no_plan_says_where_it_is_from() -> None:
    asked = bare(painted("", 9, 14).plan)
    asked = replace(asked, instruction="Paint for a wall of 9 by 14 metres")
    plan, missing = ArgumentScorer().fill(asked, PAINTING)
    assert plan.nodes[0].arguments == {"width": 9, "height": 14}
    assert missing == ("paint.area",)
    alone = Plan("Paint for 50 square metres", (Node("paint"),))
    assert ArgumentScorer().fill(alone, PAINTING)[0].nodes[0].arguments == {"area": 50}
    twice = Plan("Areas of 2 by 3 and 2 by 5", (Node("area"), Node("area")))
    filled_twice = ArgumentScorer().fill(twice, PAINTING)[0]
    assert all(set(node.arguments) == {"width", "height"} for node in filled_twice.nodes)


def test_two_plans_are_enough_to_learn_where_an_argument_is_from() -> None:
    scorer = fit_scorer(paintings(2), PAINTING)
    plan, missing = scorer.fill(bare(painted(FORMS[2].format(5, 5), 5, 5).plan), PAINTING)
    assert plan.nodes[1].arguments == {"area": "<node-0>"}
    assert not missing


def test_a_part_of_a_result_that_plans_take_is_that_part_again() -> None:
    known = [
        replace(each, plan=Plan(each.instruction, (each.plan.nodes[0], Node("paint", {"area": v}))))
        for each, v in zip(paintings(4), ["<node-0>.of[1]"] * 3 + ["<node-0>"], strict=True)
    ]
    scorer = fit_scorer(known, PAINTING)
    asked = painted(FORMS[0].format(9, 14), 9, 14).plan
    two = replace(asked, nodes=(Node("area"), Node("area"), Node("paint", after=(1,))))
    assert scorer.fill(two, PAINTING)[0].nodes[2].arguments == {"area": "<node-1>.of[1]"}


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["Hi Bob, it is <node-0>", "Hi Ann, it is <node-0>"], "<node-2>"),
        ([["<node-0>", 3], ["<node-0>", 3], ["<node-0>.of"]], ["<node-2>.of"]),
        ([{"of": "<node-0>", "by": []}], "<node-2>"),
        ([{"of": ["<node-0>[1].sum"]}, "Sum: <node-0>"], {"of": ["<node-2>[1].sum"]}),
    ],
)
def test_words_beside_a_result_are_no_form_of_other_requests(
    values: list[object], form: object
) -> None:
    plans = [Plan("x", (Node("area"), Node("paint", {"area": each}))) for each in values]
    origins = Origins.of(plans)
    assert origins.counts == {"paint.area": (0, len(values))}
    assert origins.referring(Node("paint"), "area", 2, "area") == form


def test_what_an_argument_is_counted_from_is_the_other_plans() -> None:
    origins = Origins.of([each.plan for each in paintings(2)])
    assert origins.counts == {"paint.area": (0, 2)}, "a first node has no choice"
    request, result = origins.leanings("paint", "area")
    assert result == -request > 1.5
    assert 0 < origins.leanings("paint", "area", "<node-0>")[1] < result
    assert origins.leanings("paint", "colour") == (0.0, 0.0)


def test_a_checkpoint_keeps_where_arguments_are_from_and_one_without_warns(
    tmp_path: Path,
) -> None:
    model = PlannerModel.of(paintings(4), PAINTING)
    model.scorer = fit_scorer(paintings(4), PAINTING)
    content = saving.checkpoint(model, {}, 1, 0.0)
    saving.write(tmp_path / "own.pth", content)
    assert saving.load_planner(tmp_path / "own.pth").scorer == model.scorer
    for older in ({"arguments": content["arguments"][:-1]}, {"origins": {}}):
        saving.write(tmp_path / "old.pth", {**content, **older})
        with pytest.raises(ModelError, match="no longer loads"):
            saving.load_planner(tmp_path / "old.pth")
    before = {**content, "arguments": content["arguments"][:-1]}
    del before["origins"]
    saving.write(tmp_path / "old.pth", before)
    with pytest.warns(UserWarning, match=r"old\.pth.*train it again with: tutelage train planner"):
        old = saving.load_planner(tmp_path / "old.pth")
    assert old.scorer == ArgumentScorer()
    assert old.plan(paintings(1)[0].instruction, 0.0).nodes


def test_a_logistic_fit_ends_at_the_least_loss_though_whole_steps_overshoot() -> None:
    rows = torch.ones(40, 4, dtype=torch.float64)
    wanted, pull = torch.ones(40, dtype=torch.float64), torch.full((4,), 4.0, dtype=torch.float64)
    first = torch.full((4,), -2.0, dtype=torch.float64)
    weights = fit_logistic(rows, wanted, pull, first)
    slope = rows.T @ (torch.sigmoid(rows @ weights) - wanted) + pull * (weights - first)
    assert float(slope.abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("Delete the file 'notes/a.txt'", "Delete the file notes/a.txt"),
        ('Move "a.txt" to “notes/b.txt”', "Move a.txt to notes/b.txt"),
        ("Find 'notes/*.txt'", "Find notes/*.txt"),
        ("Save 'call Ana' as 'notes/a.txt'", "Save 'call Ana' as notes/a.txt"),
        ("Replace 'a.txt' with 'b.txt' in notes/c.txt", None),  # a text, beside a path
        ("Count the words in 'see notes/a.txt'", None),
        ("Say 'and/or'", None),
        ("Say 'good night'", None),
    ],
)
def test_a_path_in_quotes_is_read_as_a_path(text: str, bare: str | None) -> None:
    assert without_quotes(text) == (bare or text)
    if bare is not None:
        quoted, plain = read_request(text, CATALOG), read_request(bare, CATALOG)
        assert quoted.ids.tolist() == plain.ids.tolist()


def test_a_path_in_quotes_is_an_argument() -> None:
    assert filled("Delete the file 'notes/a.txt'", "delete_file") == ([{"path": "notes/a.txt"}], ())
    text = "Move 'notes/a.txt' to 'old/b.txt'"
    moved = [{"source": "notes/a.txt", "destination": "old/b.txt"}]
    assert filled(text, "move_file") == (moved, ())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Read it to me", None),
        ("Please wait. Send it off", None),
        ("Greet them", None),  # the tool's own verb
        ("Read Ana's file", "Ana's"),
        ("Send Noor Moreau a card", "Noor Moreau"),
        ("Greet Ana", "Ana"),
        ("Noor Moreau needs a card", "Noor Moreau"),
        ("Rosa needs a card", "Rosa"),
    ],
)
def test_a_verb_that_begins_a_sentence_is_no_name(text: str, name: str | None) -> None:
    @tool
    def greet(person: str) -> str:
        """Write a card to somebody."""
        return person

    catalog = Catalog(described({"greet": greet}))
    plan, missing = ArgumentScorer().fill(Plan(text, (Node("greet"),)), catalog)
    assert plan.instruction == text
    assert plan.nodes[0].arguments == ({} if name is None else {"person": name})
    assert missing == (("greet.person",) if name is None else ())
