"""Hydra's grammar as a shell passes it, and what is refused with which words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.in_one_item import in_one_item

from tutelage.config.overrides import Override, parse_overrides
from tutelage.errors import ConfigError


@in_one_item(
    ("text", "value"),
    [
        ("a.b=1", 1),
        ("a.b=3e-5", 3e-5),
        ("a.b=True", True),
        ("a.b=null", None),
        ("a.b=", ""),
        ("+a.b=x", "x"),
        ("++a.b=x", "x"),
        ("a.b=[x,y]", ["x", "y"]),
        ("a.b=['console','wandb']", ["console", "wandb"]),
        ("a.b=[console,wandb]", ["console", "wandb"]),
        ("a.b=[]", []),
        ('a.b="x=y, z"', "x=y, z"),
        ("a.b='3'", "3"),
        ("a.b=./data/rlhf/math/gsm8k_train.json", "./data/rlhf/math/gsm8k_train.json"),
        ("a.b=Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-3B-Instruct"),
        ("a.b=int(3.0)", 3),
    ],
)
def test_values(text: str, value: object) -> None:
    assert parse_overrides([text]) == [Override("a.b", value)]


def test_dict_becomes_its_keys() -> None:
    assert parse_overrides(["actor={optim:{lr:1},ppo_epochs:2}"]) == [
        Override("actor.optim.lr", 1),
        Override("actor.ppo_epochs", 2),
    ]


@in_one_item(
    ("text", "says"),
    [
        ("lr=1,2", r"sweep.*lr=\[1,2\]"),
        ("a/b=c", "config group"),
        ("lr=${other}", "interpolation"),
        ("lr", "has no '='"),
        ("", "has no '='"),
        ("~a.b=3", "deletes a key"),
        ("lr=nothing(1)", "cannot read"),
        ('lr="x', "cannot read"),
    ],
)
def test_refused_with_the_text(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_overrides([text])
    assert repr(text) in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_parses_or_is_a_config_error(text: str) -> None:
    override = f"model.path={text}"
    message = ""
    try:
        parsed = parse_overrides([override])
    except ConfigError as error:
        parsed, message = [], str(error)
    assert bool(parsed) != (repr(override) in message)
    assert all(read.spelling.startswith("model.path") for read in parsed)
