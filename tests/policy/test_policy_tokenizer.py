"""The embedded tokenizer: the same from the same corpus, digits apart, no byte lost."""

from __future__ import annotations

import functools
import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tutelage.policy.template import SPECIAL_TOKENS
from tutelage.policy.tokenizer import train_tokenizer
from tutelage.testing.tiny import CORPUS

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
sums = st.text("0123456789+-*/%() x=", max_size=30)


@functools.cache
def trained() -> Any:
    return train_tokenizer(CORPUS, vocab_size=400)


def test_equal_corpora_give_equal_tokenizers() -> None:
    again = train_tokenizer(list(CORPUS), vocab_size=400)
    assert again.backend_tokenizer.to_str() == trained().backend_tokenizer.to_str()
    other = train_tokenizer(["entirely different words, over and over: words"], vocab_size=400)
    assert other.backend_tokenizer.to_str() != trained().backend_tokenizer.to_str()


@given(texts | sums)
@example("e\u0301 \u00e9 \ufb01 \u0663 \U0001f600 \x00 \r\n\t ")
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    ids = trained().encode(text, add_special_tokens=False)
    assert trained().decode(ids, skip_special_tokens=False) == text


def test_every_byte_has_a_token() -> None:
    alphabet = {token for token in trained().get_vocab() if len(token) == 1}
    assert len(alphabet) == 256


@given(sums)
@settings(max_examples=100, deadline=None)
def test_digits_and_operators_are_tokens_of_their_own(text: str) -> None:
    tokens = trained().tokenize(text)
    for token in tokens:
        assert len(token) == 1 or not set(token) & set("0123456789+-*/%()")


def test_no_token_of_a_large_vocabulary_joins_digits() -> None:
    tokenizer = train_tokenizer([" ".join(str(n) for n in range(500))] * 3, vocab_size=1000)
    joined = [t for t in tokenizer.get_vocab() if len(t) > 1 and any(c.isdigit() for c in t)]
    assert joined == []


def test_special_tokens_are_one_id_each_and_teach_no_merges() -> None:
    for special in SPECIAL_TOKENS:
        assert len(trained().encode(f"a{special}b", add_special_tokens=False)) == 3
    corpus = ["<|im_start|>user<|im_end|>"] * 50
    merges = json.loads(train_tokenizer(corpus).backend_tokenizer.to_str())["model"]["merges"]
    assert not any("|" in "".join(merge) or "im" in "".join(merge) for merge in merges)


def test_words_of_the_corpus_take_fewer_tokens_than_characters() -> None:
    text = CORPUS[0]
    assert len(trained().encode(text)) < 0.7 * len(text)
