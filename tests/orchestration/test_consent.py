"""Requests that forbid, ask or limit what a plan with side effects would do."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from tutelage.errors import DataError
from tutelage.orchestration.execution.pools.tools import ToolPool
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.orchestration.plan.consent import check_consent, limited
from tutelage.orchestration.plan.dag import Node, NoPlanError, Plan
from tutelage.tools import tool


@pytest.mark.parametrize(
    "request_",
    [
        "Don't move notes/ideas.txt",
        "Don’t delete a.txt",
        "Do not delete notes/a.txt",
        "Please, never delete a.txt",
        "Who deleted notes/poem.txt?",
        "Tell me who deleted a.txt",
        "Why was a.txt deleted?",
        "How do I delete a.txt?",
        "What deleted a.txt?",
        "Was notes/a.txt deleted?",
        "Did you delete a.txt?",
        "Should I delete notes/a.txt?",
        "Delete everything but notes/todo.txt",
        "Delete all except notes/todo.txt",
        "Delete notes/a.txt only if it is empty",
        "Delete a.txt unless it is new",
        "Delete notes/a.txt tomorrow",
        "Delete a.txt in 5 minutes",
        '"Don\'t delete a.txt"',
        "Delete no files",
        "Remove none of them",
        "Leave a.txt alone",
        "Delete b.txt and leave a.txt untouched",
        "Leave the notes as they are",
        "Stop deleting files",
        "Stop the deletion of a.txt",
        "Delete a.txt once it is sent",
        "Don´t delete a.txt",
        "Don`t delete a.txt",
        "Do n't delete a.txt",
        "Donot delete a.txt",
        "You shouldnt delete a.txt",
        "Delete a.txt? No!",
        "Should a.txt be deleted",
        "Is it ok to delete a.txt",
        "Has a.txt been deleted",
        "Nobody should delete a.txt",
        "Refrain from deleting a.txt",
        "Undelete a.txt",
        "Delete everything besides a.txt",
        "Maybe delete a.txt",
        "Pretend to delete a.txt",
        "Skip deleting a.txt",
        "Deleting a.txt is prohibited",
        "Delete a.txt on Friday",
        "Delete a.txt at midnight",
        "Delete a.txt in the evening",
        "Remind me to delete a.txt",
        "Please tell Bob to delete a.txt",
        "Dry run: delete a.txt",
        "Keep a.txt",
        "Delete the logs, keep door.log",
        "Delete the logs but keep door.log",
        "Keep door.log and delete the other logs",
        "Clear the folder, keep everything in archive",
        "Delete the drafts; keep the final version",
        "Delete the logs, keep it in place",
        "Delete the logs, keep door.log as it is",
        "Delete the logs and leave door.log",
        "Delete the logs, leave out a.txt and b.txt.",
        "Delete the logs, leave the last one there",
        "Delete the logs, leave b.txt alone",
        "Delete the logs, preserve door.log",
        "Delete all logs and spare door.log",
        "Delete the logs, omit door.log",
        "Delete the logs, skip door.log",
    ],
)
def test_what_is_forbidden_asked_or_limited_is_seen(request_: str) -> None:
    assert limited(request_)


@pytest.mark.parametrize(
    "request_",
    [
        "Delete notes/a.txt",
        "Can you delete a.txt?",
        "Could you please delete a.txt?",
        "Would you delete notes/a.txt?",
        "Hey, will you remove a.txt?",
        "Do it now: delete a.txt",
        "Delete notes/not.txt",
        "Delete notes/no.txt",
        "No, delete a.txt",
        "Restart it once.",
        "Cancel my booking",
        "Leave a note for Bob",
        "Leave a message for Tom in notes/lunch.txt: soup is on the stove",
        "Leave a note that dinner will be late in a.txt",
        "Keep a copy of a.txt as b.txt",
        "Keep a copy of a.txt in old/a.txt",
        "Move keep.txt to notes",
        "Sort notes/a.txt and keep the sorted version in notes/b.txt",
        "Sort a.txt and keep it as b.txt",
        "Keep a list of the files in files.txt",
        "Delete 'keep' from the list",
        "Delete the spare folder",
        "Delete skip.txt",
        "Write 'do not disturb' to sign.txt",
        "What is 3 + 4? Write it to sum.txt.",
        "Put notes/todo.txt into alphabetical order.",
    ],
)
def test_what_is_asked_for_is_not(request_: str) -> None:
    assert limited(request_) == ""


@tool(destructive=True)
def stop_server(name: str) -> str:
    """Shut a server down."""
    return name


@tool(destructive=True)
def halt(name: str) -> str:
    """Stop a server."""
    return name


@pytest.mark.parametrize("name", ["stop_server", "halt"])
def test_a_word_by_which_a_tool_is_named_or_described_is_an_order(name: str) -> None:
    tools = {"stop_server": stop_server, "halt": halt, "delete": delete}
    check_consent(Plan("Stop the server", (Node(name, {"name": "server"}),)), tools)
    for request, chosen in (("Don't stop the server", name), ("Stop the deletion", "delete")):
        with pytest.raises(NoPlanError, match="forbids, asks or limits"):
            check_consent(Plan(request, (Node(chosen),)), tools)


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        ("Don't delete the user", "t"),
        ("Never delete the user", "Never"),
        ("Who deleted the user?", "Who"),
        ("Is the user deleted?", "Is"),
        ("Nobody deletes the user", "Nobody"),
        ('Delete user "Ana". Not!', "Not"),
        ("I deleted a.txt", "a.txt"),
        ("a.txt was deleted", "a.txt"),
        ("List who deleted a.txt", "a.txt"),
        ("Delete the logs, keep a.txt", "logs"),
        ("Delete the logs and leave a.txt", "a.txt"),
    ],
)
def test_a_word_that_limits_is_no_value(request_: str, path: str) -> None:
    with pytest.raises(NoPlanError, match="forbids, asks or limits"):
        check_consent(Plan(request_, (Node("delete", {"path": path}),)), {"delete": delete})


@pytest.mark.parametrize(
    ("name", "request_", "value"),
    [
        ("cancel_meeting", "Cancel the meeting with Bob", "Bob"),
        ("undelete", "Undelete a.txt", "a.txt"),
        ("add_meeting", "Add a meeting with Bob, May 5 2026", "2026-05-05"),
        ("keep_file", "Keep a.txt", "a.txt"),
        ("leave_room", "Leave the room there", "room"),
        ("write", "Write `do not enter` there", "do not enter"),
        ("update", "Update Bob with the updated report", "Bob"),
        ("delete", "Delete the deleted items", "items"),
    ],
)
def test_an_order_for_a_tool_of_its_name_is_none_that_limits(
    name: str, request_: str, value: str
) -> None:
    made = replace(delete, name=name, description="")
    check_consent(Plan(request_, (Node(name, {"path": value}),)), {name: made})


def test_what_was_done_may_be_in_quotes() -> None:
    plan = Plan("Delete 'deleted things.txt'", (Node("delete", {"path": "deleted things.txt"}),))
    check_consent(plan, {"delete": delete})


Given = tuple[str, *tuple[tuple[str, str], ...]]


def plan_of(request: str, *calls: tuple[str, str]) -> Plan:
    """A plan of tools with a path each; one that ends in `<-` takes the result before it too, in
    `<` a text; one with `>` waits for what is before it, or for the node of that number."""
    nodes: list[Node] = []
    for name, value in calls:
        taken = {"text": f"<node-{len(nodes) - 1}>"} if value.endswith("<-") else {}
        taken |= {"text": "milk"} if value.endswith("<") else {}
        path, _, number = value.removesuffix("<-").removesuffix("<").partition(">")
        after = (int(number or len(nodes) - 1),) if ">" in value and nodes else ()
        nodes.append(Node(name, {"path": path, **taken}, after))
    return Plan(request, tuple(nodes))


ONE = (("delete", "a.txt"),)
MISREAD = [
    ("Read a.txt and delete b.txt", ("read", "b.txt"), ("delete", "a.txt")),
    ("Delete a.txt and read b.txt", ("delete", "a.txt"), ("delete", "b.txt")),
    ("delete a.txt and b.txt", ("delete", "a.txt"), ("read", "b.txt"), ("write", "a.txt<-")),
    ("Delete a.txt and b.txt", *ONE),
    ("Delete a.txt or b.txt", *ONE),
    ("Read a.txt then delete it", *ONE),
    ("Write a.txt to bob@x.org and ann@x.org", ("write", "a.txt bob@x.org")),
    ("Delete 'notes/a.txt' and 'notes/b.txt'", ("delete", "notes/a.txt")),
    ("Delete a.txt? Hell, that is the wrong file", *ONE),
    ("Hold on: delete a.txt needs the OK of Bob first", *ONE),
    ("Imagine you delete the file a.txt", *ONE),
    ("My colleague wants to delete the file a.txt", *ONE),
    ("It would be a disaster to delete a.txt", *ONE),
    ("Under zero circumstances delete a.txt", *ONE),
    ("Delete main.c and read a.txt", *ONE),
    ("Read a.txt and delete main.c", *ONE),
    ("Delete LICENSE and show a.txt", *ONE),
    ("Delete *.log and read a.txt", *ONE),
    ("Delete *.txt and read b.log", ("delete", "b.log")),
    ('Delete "My File.txt" and read a.txt', *ONE),
    ("Delete data.txt and a.txt", ("delete", "data.txt"), ("read", "a.txt")),
    ("Delete a.txt and show old/a.txt", ("delete", "old/a.txt")),
    ("Delete a.txt after you read data.txt", ("delete", "data.txt")),
    *((f"Delete {name}", ("delete", "/a.txt")) for name in ("./a.txt", "../a.txt", "~/a.txt")),
    ("Delete a.tar.gz", ("delete", "a.tar")),
    ("Read a.txt, then delete b.txt", ("read", "b.txt"), ("delete", "a.txt>")),
    ("Write the words of a.txt to b.txt", ("read", "b.txt"), ("write", "a.txt<-")),
    ("Write the words of a.txt to b.txt and delete a.txt", ("delete", "a.txt"), ("read", "b.txt")),
    ("Read a.txt, then delete it", *ONE, ("read", "a.txt")),
    ("Delete a.txt, b.txt stays", *ONE, ("delete", "b.txt")),
    ("Delete a.txt, and b.txt I need", *ONE, ("delete", "b.txt")),
    ("Delete a.txt and write the words of c.txt to b.txt", *ONE, ("delete", "c.txt>")),
    ("x " * 3000 + "delete a.txt", *ONE),
    ("Overwrite b.txt with the text of a.txt", ("read", "b.txt"), ("write", "a.txt<-")),
    ("Save the text of a.txt in b.txt", ("read", "b.txt"), ("write", "a.txt<-")),
    ("Copy b.txt to the file a.txt", ("read", "a.txt"), ("write", "b.txt<-")),
    ("Delete all files listed in notes/b.txt", ("delete", "notes/b.txt")),
    ("Delete the first line of notes/b.txt", ("delete", "notes/b.txt")),
    ("Remove the word foo from notes/b.txt", ("delete", "notes/b.txt")),
    ("Delete the backup of notes/a.txt", ("delete", "notes/a.txt")),
    (
        "Copy a.txt to b.txt, then delete a.txt",
        ("read", "a.txt"),
        ("write", "b.txt<-"),
        ("delete", "a.txt>0"),
    ),
    ("Read a.txt - delete b.txt", ("read", "b.txt"), ("delete", "a.txt")),
    ("Read a.txt (delete b.txt)", ("read", "b.txt"), ("delete", "a.txt")),
    ("- read a.txt\n- delete b.txt", ("read", "b.txt"), ("delete", "a.txt")),
    ("Write 'a' to a.txt and 'b' to b.txt", ("write", "a.txt 'b'"), ("write", "b.txt 'a'")),
    ("Delete x.c", ("delete", "y.c")),
    ("Will this delete notes/a.txt?", ("delete", "notes/a.txt")),
    ("          Should I delete a.txt?", *ONE),
    ("Thanks.           Should I delete a.txt?", *ONE),
]
RIGHT = [
    ("Read a.txt and delete b.txt", ("read", "a.txt"), ("delete", "b.txt")),
    ("Read a.txt and remove b.txt", ("read", "a.txt"), ("delete", "b.txt")),
    ("Delete a.txt, b.txt and c.txt", *ONE, ("delete", "b.txt"), ("delete", "c.txt")),
    ("Please remove a.txt and b.txt", *ONE, ("delete", "b.txt")),
    ("Could you delete a.txt plus the file b.txt?", *ONE, ("delete", "b.txt")),
    ("Copy a.txt to b.txt", ("read", "a.txt"), ("write", "b.txt<-")),
    ("Write the words of a.txt to b.txt", ("read", "a.txt"), ("write", "b.txt<-")),
    ("Delete the file 'notes/a.txt'", ("delete", "notes/a.txt")),
    ("Read a.txt, then delete it", ("read", "a.txt"), ("delete", "a.txt>")),
    ("What is 3 + 4? Write it to sum.txt", ("write", "sum.txt")),
    ("Could you delete a.txt? Thanks", *ONE),
    ("Write buy milk and eggs to a.txt", ("write", "a.txt<")),
    ("Write the sum of 12.50, 3.20 and 4.00 kg to a.txt", ("write", "a.txt<")),
    ("Write 'buy milk' to a.txt, please", ("write", "a.txt 'buy milk'")),
    ("Get rid of photos/a.png", ("delete", "photos/a.png")),
    ("Delete the file a.txt, 3.5kg and 12.50€", *ONE),
    ("Throw logs/a.log away", ("delete", "logs/a.log")),
    ("Delete REPORT.TXT", ("delete", "report.txt")),
    ("Delete the oldest invoice", ("delete", "invoices/1.csv")),
]


@pytest.mark.parametrize("given", MISREAD, ids=lambda given: given[0][:60])
def test_what_is_named_is_taken_by_the_step_that_it_is_named_for(given: Given) -> None:
    plan = plan_of(*given)
    with pytest.raises(NoPlanError, match="the request"):
        check_consent(plan, TOOLS)


@pytest.mark.parametrize("given", RIGHT, ids=lambda given: given[0])
def test_a_plan_that_takes_all_of_it_passes(given: Given) -> None:
    check_consent(plan_of(*given), TOOLS)


def test_goal_and_source_of_a_move_are_told_apart() -> None:
    @tool(destructive=True)
    def move(source: str, destination: str) -> str:
        """Move a file."""
        return source + destination

    def plan(source: str, destination: str) -> Plan:
        node = Node("move", {"source": source, "destination": destination})
        return Plan("Move a.txt to b.txt", (node,))

    check_consent(plan("a.txt", "b.txt"), {"move": move})
    with pytest.raises(NoPlanError, match=r"'b.txt' as a goal"):
        check_consent(plan("b.txt", "a.txt"), {"move": move})


def test_a_folder_is_no_old_file() -> None:
    @tool(destructive=True)
    def move(source: str, folder: str) -> str:
        """Move a file."""
        return source + folder

    node = Node("move", {"source": "a.txt", "folder": "old/x"})
    check_consent(Plan("Move a.txt to old/x", (node,)), {"move": move})


def test_a_planner_of_a_users_own_may_name_files_as_it_likes() -> None:
    plan = plan_of("Delete /data/a.txt", ("delete", "a.txt"))
    check_consent(plan, TOOLS, trained=False)
    with pytest.raises(NoPlanError, match="no call of the plan takes it"):
        check_consent(plan, TOOLS)


@pytest.mark.parametrize(
    "request_",
    [
        "Write to notes/x.txt, 'Please buy milk and bread and call Ana on Friday, thanks' please",
        "Delete notes/a.txt, invoices/2026-03-04-acme-corporation-of-a-very-long-name.pdf goes too",
        "Delete notes/a.txt," + " " * 900 + "please",
        "Delete https://x.org/" + "a_" * 900 + ", a.txt",
    ],
)
def test_a_name_in_a_request_may_be_long(request_: str) -> None:
    with suppress(NoPlanError):
        check_consent(plan_of(request_, *ONE), TOOLS)


def test_what_forbids_counts_however_far_down_it_stands() -> None:
    with pytest.raises(NoPlanError, match="forbids"):
        check_consent(plan_of("x " * 2000 + "Do not delete a.txt", *ONE), TOOLS, trained=False)


@pytest.mark.parametrize("text", ["leave w ", "leave there w ", ". ", ", ", "a.txt, "])
def test_long_requests_are_read_to_their_end(text: str) -> None:
    """What reads them in the square of their length would take hours."""
    with suppress(NoPlanError):
        check_consent(plan_of(text * 4000, *ONE), TOOLS, trained=False)
    limited(text * 1000)


class Planner:
    """Sure of one tool, whatever is asked."""

    confidence = object()

    def __init__(self, name: str) -> None:
        self._name = name

    def plan(self, instruction: str, min_confidence: float | None = None) -> Plan:
        """A plan of that tool."""
        return Plan(instruction, (Node(self._name, {"path": "a.txt"}),))


@tool
def read(path: str) -> str:
    """Read a file."""
    return path


@tool(destructive=True)
def delete(path: str) -> str:
    """Delete a file."""
    return path


@tool(destructive=True)
def write(path: str, text: str = "") -> str:
    """Write a file."""
    return path


TOOLS = {"read": read, "write": write, "delete": delete}


def test_a_sure_planner_declines_side_effects_alone() -> None:
    pool = ToolPool({"read": read, "delete": delete})
    system = OrchestrationSystem(Planner("delete"), pool, min_confidence=0)
    told = 'forbids, asks or limits what delete would do \\("Don\'t"\\)'
    with pytest.raises(NoPlanError, match=told) as error:
        system.plan("Don't delete a.txt")
    assert isinstance(error.value, DataError)
    assert system.plan("Can you delete a.txt?").nodes[0].tool == "delete"
    reading = OrchestrationSystem(Planner("read"), pool)
    assert reading.plan("Who deleted a.txt?").nodes[0].tool == "read"


@tool(destructive=True)
def send(text: str, day: str) -> str:
    """Send a text.

    Args:
        text: What.
        day: When.
    """
    return f"{text} {day}"


def test_words_that_are_taken_over_limit_nothing() -> None:
    request = "Send Bob a mail that I cannot come to the meeting at the office tomorrow"
    nodes = (Node("send", arguments={"text": "I cannot come", "day": "tomorrow"}),)
    check_consent(Plan(request, nodes), {"send": send})
    nodes = (Node("send", arguments={"text": "I cannot come", "day": "today"}),)
    with pytest.raises(NoPlanError, match="tomorrow"):
        check_consent(Plan(request, nodes), {"send": send})
    # Of a tool that no server said anything of, the permission is asked for each call.
    check_consent(Plan(request, nodes), {"send": replace(send, assumed=True)})
