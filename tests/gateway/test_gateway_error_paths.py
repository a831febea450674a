"""Where a refusal says that something is wrong: a path of the request's own keys, its value, and
both ends of a long one."""

from __future__ import annotations

from typing import Any

import pytest

from tutelage.gateway.completions import AnswerCache
from tutelage.gateway.dialects import DIALECTS
from tutelage.gateway.errors import ApiError
from tutelage.types import Sampling

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
LONG = "x" * 300


def block(**fields: Any) -> dict[str, Any]:
    """A request of messages with one block."""
    return {"messages": [{"role": "user", "content": [fields]}]}


def refusal(dialect: str, body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        BY_NAME[dialect].read({"model": "m", **body}, Sampling(), AnswerCache())
    return caught.value


HI: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
AT = "messages[0].content[0]"
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}


@pytest.mark.parametrize(
    ("dialect", "body", "path", "words"),
    [
        ("messages", block(type="tool_use", id="x", name="f", input=3), f"{AT}.input", "= 3"),
        ("messages", block(**RESULT), f"{AT}.content[0].type", "= 'image'"),
        ("messages", block(text=LONG, type="imagee"), f"{AT}.type", "= 'imagee'"),
        ("completions", {"prompt": [[1], [2, -1]]}, "prompt[1][1]", "= -1"),
        ("responses", {"input": [{"role": "user", "text": "x"}]}, "input[0].content", "is missing"),
        (
            "chat.completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "this model accepts text only, not images",
        ),
        ("chat.completions", HI | {"top_p": 1.5}, "top_p", "less than or equal to 1"),
    ],
)
def test_the_path_is_one_of_the_request(
    dialect: str, body: dict[str, Any], path: str, words: str
) -> None:
    error = refusal(dialect, body)
    assert error.param == path
    assert error.message.startswith(f"`{path}` ")
    assert words in error.message
