"""Verifiers: whether an answer is right. An HTTP 200 is not.

One verifier a type of subtask, and one for all others. `known` reads the truth that simulated and
replayed pools have; `exact`, `regex`, `schema`, `tests` and `judge` (another model, whose verdicts
cost something: `judge.py`) check what real workers say;
`present`, the last resort, only sees that there is something and says that it saw no more
(`checked` is False). An answer with an error is never passed, whatever it contains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

from tutelage.bounded import parse_json
from tutelage.errors import ConfigError, MissingExtraError
from tutelage.orchestration.execution.workers import Answer, Verdict, Work


class _Verifier(Protocol):
    """Judges an answer that has no error."""

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """Pass or not, with a reason. Raises `TutelageError` where it cannot judge at all."""
        ...


@runtime_checkable
class _PricedVerifier(Protocol):
    """A verifier whose verdicts cost something."""

    def bound(self, work: Work, answer: Answer | None = None) -> float:
        """USD that a verdict cannot exceed; without an answer, for one of the usual length."""
        ...


@dataclass(frozen=True, slots=True)
class Verifiers:
    """A verifier for each type or kind of subtask, and one for the rest."""

    default: _Verifier
    by_type: Mapping[str, _Verifier] = field(default_factory=dict[str, _Verifier])

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """The verdict of the verifier for this work; an error fails without asking it."""
        if answer.error is not None:
            return Verdict(False, f"{answer.error.kind}: {answer.error.message}")
        return await self._of(work).check(work, answer)

    def _of(self, work: Work) -> _Verifier:
        found = (self.by_type[label] for label in work.labels if label in self.by_type)
        return next(found, self.default)

    def bound(self, work: Work, answer: Answer | None = None) -> float:
        """USD that the verdict cannot exceed: what a budget reserves for it."""
        verifier = self._of(work)
        if not isinstance(verifier, _PricedVerifier) or (answer is not None and answer.error):
            return 0.0
        return verifier.bound(work, answer)


class _Known:
    """Reads `answer.correct`; a pool that does not know the truth is refused."""

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `_Verifier`."""
        if answer.correct is None:
            raise ConfigError(
                f"the verifier 'known' has no truth for node {work.node} ({work.type!r}): only "
                "simulated and replayed pools know it; choose exact, regex, schema, tests or judge"
            )
        return Verdict(answer.correct, "right" if answer.correct else "wrong")


class _Present:
    """Passes any answer that says something; `checked` is False."""

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `_Verifier`."""
        if not answer.output.strip():
            return Verdict(False, "the answer is empty")
        return Verdict(True, "it says something; nobody checked what", checked=False)


@dataclass(frozen=True, slots=True)
class _Exact:
    """Compares with `expected`, or with the work's own; white space and case are forgiven."""

    expected: str | None = None

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `_Verifier`."""
        wanted = self.expected if self.expected is not None else work.expected
        if wanted is None:
            raise ConfigError(f"the verifier 'exact' knows no answer for node {work.node}")
        same = _plain(answer.output) == _plain(str(wanted))
        return Verdict(same, "equal" if same else f"not {str(wanted)!r:.60}")


class _Regex:
    """Searches the answer for a pattern. Raises `ConfigError` for one that is none."""

    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise ConfigError(f"the verifier's pattern {pattern!r} is none: {error}") from error

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `_Verifier`."""
        found = self._pattern.search(answer.output) is not None
        return Verdict(found, f"{'fits' if found else 'lacks'} {self._pattern.pattern!r:.60}")


class _Schema:
    """The answer is JSON (a fence around it is forgiven) of a JSON schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Raises `ConfigError` for a schema that is none, `MissingExtraError` without the extra."""
        try:
            from jsonschema import Draft202012Validator
            from jsonschema.exceptions import SchemaError
        except ImportError as error:
            raise MissingExtraError(
                "the verifier 'schema' needs jsonschema; install it with: "
                "pip install 'tutelage[mcp]'"
            ) from error
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ConfigError(f"the verifier's schema is none: {error.message}") from error
        self._validator: Any = Draft202012Validator(schema)

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `_Verifier`."""
        try:
            value = parse_json(_unfenced(answer.output))
        except ValueError as error:
            return Verdict(False, f"no JSON: {error}")
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is None:
            return Verdict(True, "of the schema")
        return Verdict(False, f"not of the schema: {error.message:.100}")


class _Tests:
    """The answer is code that passes tests, run in the sandbox (`rewards/code.py`)."""

    def __init__(self, tests: object, entry_point: str | None = None) -> None:
        """Raises `ConfigError` where no sandbox works, `RewardError` for tests that are none."""
        from tutelage.rewards.code import code_reward_in
        from tutelage.rewards.code_tests import read_tests
        from tutelage.tools.sandbox import usable_tier

        read_tests(tests, entry_point)
        self._tests, self._entry_point = tests, entry_point
        self._reward = code_reward_in(usable_tier())

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `_Verifier`."""
        found = await self._reward.fn(answer.output, self._tests, self._entry_point)
        parts = cast("Mapping[str, float]", found)
        told = f"{parts['passed']:g} of {parts['tests']:g} tests pass"
        return Verdict(bool(parts["all"]), told)


_KINDS: Mapping[str, Callable[..., _Verifier]] = {
    "known": _Known,
    "present": _Present,
    "exact": _Exact,
    "regex": _Regex,
    "schema": _Schema,
    "tests": _Tests,
}
"""Verifiers as files name them; `judge` is in a file of its own."""


def default_verifiers(*, mock: bool) -> Verifiers:
    """`known` for pools with the truth, else `present`."""
    return Verifiers(_Known() if mock else _Present())


def make_verifier(given: Mapping[str, Any], where: str = "a verifier") -> _Verifier:
    """A verifier from JSON: `{"kind": "regex", "pattern": "..."}` and so on.

    Raises `ConfigError` for an unknown kind or field.
    """
    fields = dict(given)
    kind = fields.pop("kind", None)
    made = _KINDS.get(str(kind))
    if kind == "judge":
        from tutelage.orchestration.execution.judge import Judge

        made = Judge
    if made is None:
        kinds = ", ".join([*_KINDS, "judge"])
        raise ConfigError(f"{where}: kind {kind!r} does not exist; there are {kinds}")
    try:
        return made(**fields)
    except TypeError as error:
        raise ConfigError(f"{where} ({kind!r}): {error}") from error


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _unfenced(text: str) -> str:
    text = text.strip()
    if text.startswith("```"):
        text = text.strip("`").removeprefix("json")
    return text.strip()
