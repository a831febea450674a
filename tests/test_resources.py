"""Resources: which LLM is the policy, and templates that braces cannot break."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutelage.errors import ConfigError
from tutelage.resources import LLM, NamedResources, PromptTemplate, Roles
from tutelage.types import Sampling

# ---------------------------------------------------------------- templates


def test_a_template_fills_its_placeholders_and_leaves_other_braces_alone() -> None:
    prompt = PromptTemplate('Q: {question} {{kept}} {"json": {question}} {} {0} {a b} }{')
    assert prompt.placeholders == ("question",)
    assert prompt.format(question="{answer}", unused=1) == (
        'Q: {answer} {kept} {"json": {answer}} {} {0} {a b} }{'
    )
    with pytest.raises(ConfigError, match="'question'"):
        prompt.format(other=1)


@given(st.text(alphabet="{}ab_ 1", max_size=20))
def test_escaped_text_comes_out_as_it_went_in(text: str) -> None:
    made = PromptTemplate(PromptTemplate.escape(text))
    assert made.placeholders == ()
    assert made.format() == text


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text(), max_size=3), st.text())
def test_values_are_never_read_as_templates(values: dict[str, str], tail: str) -> None:
    prompt = PromptTemplate("".join(f"<{{{name}}}>" for name in values))
    assert prompt.format(**values) == "".join(f"<{v}>" for v in values.values())


# ---------------------------------------------------------------- roles


@pytest.mark.parametrize(
    ("llms", "endpoints", "expected"),
    [
        ({"a": LLM()}, {}, Roles({"a": "main"}, (), {})),
        ({"a": LLM("x"), "t": LLM("x", tokenizer_only=True)}, {}, Roles({"a": "main"}, (), {})),
        (
            {"a": LLM(), "j": LLM("gpt", endpoint="http://j")},
            {},
            Roles({"a": "main"}, (), {"j": "http://j"}),
        ),
        (
            {"a": LLM("x"), "j": LLM("gpt")},
            {"gpt": "http://j"},
            Roles({"a": "main"}, (), {"j": "http://j"}),
        ),
        (
            {"u": LLM(frozen=True), "a": LLM(trainable=True)},
            {},
            Roles({"a": "main"}, ("u",), {}),
        ),
        (
            {"a": LLM(trainable=True), "b": LLM(trainable=True, policy="b")},
            {},
            Roles({"a": "main", "b": "b"}, (), {}),
        ),
        ({"j": LLM(endpoint="http://j")}, {}, Roles({}, (), {"j": "http://j"})),
        (
            {"a": LLM(trainable=True, endpoint="http://a"), "j": LLM(endpoint="http://j")},
            {},
            Roles({"a": "main"}, (), {"a": "http://a", "j": "http://j"}),
        ),
        ({"other": 7}, {}, Roles({}, (), {})),
    ],
)
def test_who_is_what(llms: dict[str, Any], endpoints: dict[str, str], expected: Roles) -> None:
    assert Roles.find(llms, endpoints) == expected


@pytest.mark.parametrize(
    ("llms", "endpoints", "words"),
    [
        ({"a": LLM(), "b": LLM()}, {}, "Mark the one to train"),
        ({"a": LLM(trainable=True), "b": LLM()}, {}, "frozen=True"),
        ({"a": LLM()}, {"b": "http://x"}, "endpoints has the unknown LLM 'b'"),
        ({"a": LLM(frozen=True)}, {}, "there is no policy"),
    ],
)
def test_what_is_not_clear_is_an_error(
    llms: dict[str, Any], endpoints: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Roles.find(llms, endpoints)


def test_an_llm_cannot_be_two_things() -> None:
    with pytest.raises(ConfigError, match="trainable and frozen"):
        LLM(trainable=True, frozen=True)
    with pytest.raises(ConfigError, match="frozen and endpoint"):
        LLM(frozen=True, endpoint="http://x")


def test_sampling_of_a_resource_replaces_only_what_it_says() -> None:
    default = Sampling(temperature=0.5, max_tokens=9)
    assert LLM().sampling(default) == default
    said = LLM(max_tokens=3, stop=("x",)).sampling(default)
    assert said == Sampling(temperature=0.5, max_tokens=3, stop=("x",))


async def test_an_llm_outside_a_rollout_says_so() -> None:
    with pytest.raises(ConfigError, match="inside a rollout"):
        await LLM("x").chat("hello")


# ---------------------------------------------------------------- names


async def test_named_resources_are_a_mapping_with_attributes_and_a_life() -> None:
    class Shop:
        async def __aenter__(self) -> str:
            return "open"

        async def __aexit__(self, *exc_info: object) -> None:
            pass

    named = NamedResources({"main": LLM("x")}, shop=Shop())
    assert named.get("main") == named["main"] == named.main
    assert named.get("none") is None
    assert list(named) == ["main", "shop"]
    with pytest.raises(AttributeError, match="available: main, shop"):
        _ = named.none
    with pytest.raises(KeyError, match="no resource 'none'; available: main, shop"):
        _ = named["none"]
    assert "none" not in named
    async with AsyncExitStack() as stack:
        entered = await named.entered(stack)
        assert entered.shop == "open"
        assert entered.main is named.main
    for name in ("task", "rollout", "two words", ""):
        with pytest.raises(ConfigError):
            NamedResources({name: 1})
