"""Verifiers: whether an answer is right. An HTTP 200 is not.

One verifier a type of subtask, and one for all others. `known` reads the truth that simulated and
replayed pools have; `exact`, `regex`, `schema`, `tests` and `judge` (another model, whose verdicts
cost something: `judge.py`) check what real workers say;
`present`, the last resort, only sees that there is something and says that it saw no more
(`checked` is False). An answer with an error is never passed, whatever it contains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

from tutelage.bounded import parse_json
from tutelage.errors import ConfigError, MissingExtraError
from tutelage.orchestration.execution.workers import Answer, Work


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says."""

    passed: bool
    reason: str = ""
    checked: bool = True
    """False where nothing could be compared: the answer was only seen to be there."""
    cost: float = 0.0
    """USD that the verdict itself came to."""


class Verifier(Protocol):
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

    default: Verifier
    by_type: Mapping[str, Verifier] = field(default_factory=dict[str, Verifier])

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """The verdict of the verifier for this work; an error fails without asking it."""
        if answer.error is not None:
            return Verdict(False, f"{answer.error.kind}: {answer.error.message}")
        return await self.of(work).check(work, answer)

    def of(self, work: Work) -> Verifier:
        """The verifier for this work."""
        found = (self.by_type[label] for label in work.labels if label in self.by_type)
        return next(found, self.default)

    def bound(self, work: Work, answer: Answer | None = None) -> float:
        """USD that the verdict cannot exceed: what a budget reserves for it."""
        verifier = self.of(work)
        if not isinstance(verifier, _PricedVerifier) or (answer is not None and answer.error):
            return 0.0
        return verifier.bound(work, answer)


class Known:
    """Reads `answer.correct`; a pool that does not know the truth is refused."""

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `Verifier`."""
        if answer.correct is None:
            raise ConfigError(
                f"the verifier 'known' has no truth for node {work.node} ({work.type!r}): only "
                "simulated and replayed pools know it; choose exact, regex, schema, tests or judge"
            )
        return Verdict(answer.correct, "right" if answer.correct else "wrong")


class Present:
    """Passes any answer that says something; `checked` is False."""

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `Verifier`."""
        if not answer.output.strip():
            return Verdict(False, "the answer is empty")
        return Verdict(True, "it says something; nobody checked what", checked=False)


@dataclass(frozen=True, slots=True)
class Exact:
    """Compares with `expected`, or with the work's own; white space and case are forgiven."""

    expected: str | None = None

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `Verifier`."""
        wanted = self.expected if self.expected is not None else work.expected
        if wanted is None:
            raise ConfigError(f"the verifier 'exact' knows no answer for node {work.node}")
        same = _plain(answer.output) == _plain(str(wanted))
        return Verdict(same, "equal" if same else f"not {str(wanted)!r:.60}")


class Regex:
    """Searches the answer for a pattern. Raises `ConfigError` for one that is none."""

    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise ConfigError(f"the verifier's pattern {pattern!r} is none: {error}") from error

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `Verifier`."""
        found = self._pattern.search(answer.output) is not None
        return Verdict(found, f"{'fits' if found else 'lacks'} {self._pattern.pattern!r:.60}")


class Schema:
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
        """See `Verifier`."""
        try:
            value = parse_json(_unfenced(answer.output))
        except ValueError as error:
            return Verdict(False, f"no JSON: {error}")
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is None:
            return Verdict(True, "of the schema")
        return Verdict(False, f"not of the schema: {error.message:.100}")


class Tests:
    """The answer is code that passes tests, run in the sandbox (`rewards/code.py`)."""

    __test__ = False  # for pytest, which would collect it by its name

    def __init__(self, tests: object, entry_point: str | None = None) -> None:
        """Raises `ConfigError` where no sandbox works, `RewardError` for tests that are none."""
        from tutelage.rewards.code import code_reward_in
        from tutelage.rewards.code_tests import read_tests
        from tutelage.tools.sandbox import usable_tier

        read_tests(tests, entry_point)
        self._tests, self._entry_point = tests, entry_point
        self._reward = code_reward_in(usable_tier())

    async def check(self, work: Work, answer: Answer) -> Verdict:
        """See `Verifier`."""
        found = await self._reward.fn(answer.output, self._tests, self._entry_point)
        parts = cast("Mapping[str, float]", found)
        told = f"{parts['passed']:g} of {parts['tests']:g} tests pass"
        return Verdict(bool(parts["all"]), told)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _unfenced(text: str) -> str:
    text = text.strip()
    if text.startswith("```"):
        text = text.strip("`").removeprefix("json")
    return text.strip()
