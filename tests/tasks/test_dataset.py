"""Datasets: what is read from each format, and that a bad row is refused with its exact place."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TypedDict

import pytest

from tutelage.errors import DataError, MissingExtraError
from tutelage.tasks import Dataset
from tutelage.types import Message, Task

GOOD = {"question": "What is 1+1?", "answer": "2"}


def test_a_task_is_read_like_its_row() -> None:
    given, made = Dataset([{"id": 7, "question": "1 + 1?", "answer": 2}, {"question": "2 + 2?"}])
    assert given["id"] == "7"
    assert (given["question"], given["answer"]) == ("1 + 1?", 2)
    assert made["id"] == made.id
    with pytest.raises(KeyError, match="reward"):
        made["reward"]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        Dataset.load(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps([GOOD, {"question": "q", "answer": "3"}])),
        ("a.json", "\ufeff \n[" + json.dumps(GOOD) + "\n,\n" + '{"question":"q","answer":"3"}]\n'),
        ("a.json", json.dumps(GOOD) + '\n{"question":"q","answer":"3"}\n'),
        ("a.jsonl", json.dumps(GOOD) + "\r\n\r\n" + '{"question":"q","answer":"3"}'),
        (
            "a.json",
            json.dumps({"version": 1, "data": [GOOD, {"question": "q", "answer": "3"}]}, indent=1),
        ),
        ("a.csv", 'question,answer\nWhat is 1+1?,2\n"q",3\n'),
        ("a.csv", 'question, answer\n"What is 1+1?", "2"\nq, 3\n'),
    ],
)
def test_formats_give_the_same_tasks(tmp_path: Path, name: str, content: str) -> None:
    dataset = Dataset.load(write(tmp_path, name, content))
    assert [dict(t.fields) for t in dataset] == [GOOD, {"question": "q", "answer": "3"}]
    assert dataset.fields == ("question", "answer")


def test_a_line_separator_inside_a_string_does_not_end_a_jsonl_row(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"question": "a\u2028b"}\n{"question": 5}\n')
    assert "a.jsonl:2: field 'question'" in refused(path)


@pytest.mark.parametrize(
    ("name", "content", "place", "says"),
    [
        ("bad.jsonl", '{"question": "q"}\n\n{"question": }\n', ":3:", "invalid JSON"),
        ("bad.jsonl", '{"question": "q"}\n[1]\n', ":2:", "must be an object"),
        ("bad.jsonl", '{"question": "q", "x": {"y": [1, NaN]}}\n', ":1:", "'x' is {'y': [1, nan]}"),
        ("bad.jsonl", '{"question": "q", "question": "r"}\n', ":1:", "stands twice"),
        ("bad.jsonl", '{"question": "  "}\n', ":1:", "'question' must not be empty"),
        ("bad.jsonl", '{"question": null, "prompt": "p"}\n', ":1:", "'question' must be"),
        ("bad.jsonl", '{"question": ' + "[" * 100_000 + "\n", ":1:", "cannot parse JSON"),
        ("bad.jsonl", b'{"question": "\xff"}\n', ":1:", "not valid UTF-8 (byte 0xff)"),
        ("bad.json", '[{"question": "q"},\n {"answer": 1}]', " (index 1):", "no input field"),
        ("bad.json", '[{"question": "q"}\n {"question": "r"}]', ":2:", "Expecting ',' delimiter"),
        ("bad.json", '[{"question": "q"}]\nmore', ":", "text after"),
        ("bad.json", '[{"question": "q"}, 7]', " (index 1):", "must be an object"),
        ("bad.json", '{"data": [{"question": "q"}, {"answer": 1}]}', " (index 1):", "no input"),
        ("bad.json", '{\n "data": [\n  {"question": }\n ]\n}', ":3:", "invalid JSON at column 16"),
        ("bad.json", '\n{"train": [{}], "test": [{}]}', ":", "rows under 'train', 'test'"),
        ("bad.json", '{"data": []}', " (index 0):", "the row has 'data'"),
        ("bad.csv", 'question,answer\n"two\nlines",1\nq,1,2\n', ":4:", "3 cells"),
        ("bad.csv", "question,question\na,b\n", ":1:", "unique column names"),
        ("bad.csv", 'question\n"open\n', ":2:", "invalid CSV"),
    ],
)
def test_bad_rows_are_refused_with_their_place(
    tmp_path: Path, name: str, content: str | bytes, place: str, says: str
) -> None:
    message = refused(write(tmp_path, name, content))
    assert f"{name}{place}" in message
    assert says in message


USER = {"role": "user", "content": "hi"}
SAYS = {"role": "assistant", "content": "hello"}
CALLS = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": {"a": 1}}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "2"}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ('[{"role": "user", "content": "hi"}]', "'messages': Input should be a valid list"),
        ([{"content": "x"}], "'messages[0].role': Field required"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "'messages[0].content'"),
        ([{"role": "system", "content": "hi"}], "for the agent to answer"),
        ([USER, CALLS], "for the agent to answer"),
        ([USER, {"role": "system", "content": "late"}], "'messages[1]'"),
        ([USER, CALLS, {**RESULT, "tool_call_id": "d"}], "'messages[2]'"),
    ],
)
def test_messages_that_no_agent_can_answer_are_refused(
    tmp_path: Path, messages: object, says: str
) -> None:
    rows = [json.dumps(row) + "\n" for row in (GOOD, {"messages": messages, "answer": "1"})]
    message = refused(write(tmp_path, "bad.jsonl", "".join(rows)))
    assert "bad.jsonl:2: field " in message
    assert says in message


def test_a_conversation_that_the_agent_answers_is_a_task(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Add."}
    talks = [[system, USER], [USER, SAYS, USER], [USER, CALLS, RESULT], [USER, USER]]
    talks += [[system, SAYS, USER], [SAYS, USER], [USER, SAYS, SAYS, USER]]
    rows = [json.dumps({"messages": talk}) + "\n" for talk in talks]
    found = Dataset.load(write(tmp_path, "a.jsonl", "".join(rows)))
    assert [task.input for task in found] == talks
    assert [len(task.messages()) for task in found] == [2, 3, 3, 2, 3, 2, 4]
    assert found[2].messages()[1].tool_calls[0].arguments == '{"a": 1}'


def test_tasks_know_where_their_rows_stand(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"question": "a"}\n\n{"question": "b"}\n')
    found = Dataset.load(path)
    assert [task.place for task in found] == [f"{path}:1", f"{path}:3"]
    assert [task.place for task in Dataset([*found, GOOD])][1:] == [
        f"{path}:3", "dataset (index 2)"
    ]  # fmt: skip


def test_text_parts_of_a_message_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]
    first = {"role": "developer", "content": parts[:1]}
    row = {"messages": [first, {"role": "user", "content": parts}]}
    (task,) = Dataset.load(write(tmp_path, "a.json", json.dumps(row)))
    read = [Message.from_dict(message) for message in task.fields["messages"]]
    assert [(m.role, m.content) for m in read] == [("system", "2 + "), ("user", "2 + 2?")]


def test_a_json_object_over_several_lines_is_a_row(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "q"}], "answer": "3"}
    (task,) = Dataset.load(write(tmp_path, "a.json", json.dumps(row, indent=1)))
    assert task.fields == row


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", ""), ("a.json", "[]"), ("a.jsonl", "\n\n"), ("a.csv", "question,answer\n")],
)
def test_a_file_without_rows_is_refused(tmp_path: Path, name: str, content: str) -> None:
    assert "has no rows" in refused(write(tmp_path, name, content))


def test_missing_files_folders_and_unknown_suffixes_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "none.jsonl")
    (tmp_path / "folder.json").mkdir()
    assert "is a folder" in refused(tmp_path / "folder.json")
    assert ".jsonl" in refused(write(tmp_path, "a.txt", "x"))


def test_a_missing_input_lists_the_fields_and_the_accepted_names(tmp_path: Path) -> None:
    message = refused(write(tmp_path, "a.jsonl", '{"questions": "q", "answer": "a"}'))
    for part in ("'questions'", "'answer'", "question, prompt", "did you mean 'question'?"):
        assert part in message


def test_parquet_works_with_pyarrow_and_says_what_to_install_without(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        path.write_bytes(b"PAR1")
        with pytest.raises(MissingExtraError, match="pip install pyarrow"):
            Dataset.load(path)
        return
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([GOOD]), path)
    assert dict(Dataset.load(path)[0].fields) == GOOD


def test_ids_are_given_or_follow_from_the_content() -> None:
    first = Dataset([{"id": 7, "question": "a"}, {"question": "b", "x": 1}])
    second = Dataset([{"x": 1, "question": "b"}, {"question": "c", "x": 1}])
    assert first[0].id == "7"
    assert first[0].fields["id"] == 7
    assert first[1].id == second[0].id != second[1].id


def test_equal_ids_are_refused_with_both_places(tmp_path: Path) -> None:
    rows = '{"id": "x", "question": "a"}\n{"id": "y", "question": "a"}\n{"id": "x", "prompt": "b"}'
    message = refused(write(tmp_path, "a.jsonl", rows))
    assert "a.jsonl:3" in message
    assert "a.jsonl:1" in message


def test_a_row_may_stand_there_again(tmp_path: Path) -> None:
    once, named = {"question": "a", "answer": 1}, {"id": "x", "question": "b"}
    found = Dataset([once, named, once, named, {"id": "x-2", "question": "c"}, once])
    first = found[0].id
    assert [t.id for t in found] == [first, "x", f"{first}-2", "x-3", "x-2", f"{first}-3"]
    assert found[2].fields == found[0].fields
    line = json.dumps(once) + "\n"
    assert [t.id for t in Dataset.load(write(tmp_path, "b.jsonl", line * 2))] == [
        first, f"{first}-2"
    ]  # fmt: skip


def test_equal_rows_stay_on_one_side_of_a_split() -> None:
    rows = [{"id": str(i), "question": f"q{i % 10}"} for i in range(30)]
    for seed in range(5):
        first, second = Dataset(rows).split(0.7, seed)
        assert not {t.input for t in first} & {t.input for t in second}
        assert len(first) == 21
        assert len(second) == 9


class Row(TypedDict):
    question: str


def test_rows_in_memory_are_checked_by_index() -> None:
    rows: list[Row] = [{"question": "a"}, {"question": "b"}]
    assert [t.input for t in Dataset[Row](rows)] == ["a", "b"]
    with pytest.raises(DataError, match=r"index 1\).*'when' is <object"):
        Dataset([GOOD, {"question": "q", "when": object()}])
    with pytest.raises(DataError, match="no input field"):
        Dataset([Task("t", {"answer": 1})])
    with pytest.raises(DataError, match="no rows"):
        Dataset([])


def test_split_is_disjoint_complete_and_a_function_of_the_seed() -> None:
    dataset = Dataset([{"question": str(i)} for i in range(50)])
    first, second = dataset.split(0.8, seed=3)
    assert (len(first), len(second)) == (40, 10)
    assert {t.id for t in first} | {t.id for t in second} == {t.id for t in dataset}
    assert [t.id for t in dataset.split(0.8, seed=3)[1]] == [t.id for t in second]
    assert [t.id for t in dataset.split(0.8, seed=4)[1]] != [t.id for t in second]
    assert [len(part) for part in dataset[:2].split(0.01, seed=0)] == [1, 1]
    for fraction in (0.0, 1.0, float("nan")):
        with pytest.raises(DataError, match="between 0 and 1"):
            dataset.split(fraction, seed=0)
    with pytest.raises(DataError, match="at least two"):
        dataset[:1].split(0.5, seed=0)
