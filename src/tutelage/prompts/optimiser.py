"""The optimiser LLM as a search uses it: budgeted, journalled, repaired once.

Requests of one step go out together and are reserved together; their replies are settled in the
order of the requests. A request that fails for good is an empty reply with the endpoint's reason:
the search then has one proposal less. Where nobody answers at all there is nothing to search with,
and the search stops with that reason. `requests.py` has the texts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from tutelage.engine.usage import Usage
from tutelage.errors import EngineError, RemoteError, RunError
from tutelage.prompts.budget import BudgetExceeded, SearchBudget
from tutelage.prompts.contract import Ask
from tutelage.prompts.edits import RejectedEdit
from tutelage.prompts.journal import SearchJournal
from tutelage.prompts.requests import repair
from tutelage.runs.rounds import Spend
from tutelage.types import JSON, Message

MUTE_STEPS = 2
"""Steps in a row in which no request at all was answered, after which a search stops."""
_REFUSED = (401, 402, 403, 404, 405)
"""Statuses of an endpoint that will answer no other request either."""


@dataclass(frozen=True, slots=True)
class OptimiserRequest:
    """One question to an optimiser role; `step_key` is unique in the search."""

    role: str
    messages: Sequence[Message]
    step_key: str


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The text of a reply, or why there is none, and what it cost."""

    text: str
    problem: str = ""
    cost: Spend = field(default_factory=Spend)
    unanswered: bool = False
    refused: bool = False
    """Whether the endpoint refuses all others too."""

    @property
    def reason(self) -> str:
        """The problem under one word, for the lineage."""
        return f"{'unanswered' if self.unanswered else 'malformed'}: {self.problem}"

    def read(self, reader: Callable[[str], str]) -> _Outcome:
        """With what `reader` makes of the text, or why it raised `RejectedEdit`."""
        if self.problem:
            return self
        try:
            return replace(self, text=reader(self.text))
        except RejectedEdit as rejected:
            return replace(self, text="", problem=rejected.reason)


class Optimiser:
    """Asks through budget and journal; `concurrency` limits concurrent requests."""

    def __init__(
        self, ask: Ask, budget: SearchBudget, journal: SearchJournal, concurrency: int = 8
    ) -> None:
        self._ask = ask
        self._budget = budget
        self._journal = journal
        self._gate = asyncio.Semaphore(concurrency)
        self._rounds = 0
        self._mute: list[str] = []
        """Keys of the requests since the last one that was answered."""
        self._mute_steps = 0

    async def read(
        self, requests: Sequence[OptimiserRequest], reader: Callable[[str], str]
    ) -> list[_Outcome]:
        """Ask all, read each reply, ask once more where `reader` raises `RejectedEdit`.

        Raises `BudgetExceeded` before anything is sent that does not fit, `EngineError` where the
        endpoint answers nothing: a resume then asks again.
        """
        first = await self._ask_all(requests)
        self._check_answered(requests, first)
        outcomes = [reply.read(reader) for reply in first]
        again = [i for i, made in enumerate(outcomes) if made.problem and not first[i].problem]
        mended = await self._ask_all([_again(requests[i], first[i], outcomes[i]) for i in again])
        for i, reply in zip(again, mended, strict=True):
            second = reply.read(reader)
            cost = outcomes[i].cost + second.cost
            outcomes[i] = replace(second, cost=cost, unanswered=False)
        return outcomes

    def _check_answered(
        self, requests: Sequence[OptimiserRequest], replies: Sequence[_Outcome]
    ) -> None:
        """Raise `EngineError` where every request was refused, or nobody answered for long."""
        if not requests:
            return
        if any(not reply.problem for reply in replies):
            self._mute, self._mute_steps = [], 0
            return
        self._mute += [_key(request) for request in requests]
        self._mute_steps += 1
        refused = any(reply.refused for reply in replies)
        if refused or self._mute_steps >= MUTE_STEPS:
            self._journal.forget(self._mute)
            role = requests[0].role
            raise EngineError(
                f"the optimiser LLM ({role}) does not answer: {replies[0].problem}; fix it, then "
                "resume"
            )

    async def _ask_all(self, requests: Sequence[OptimiserRequest]) -> list[_Outcome]:
        worst = self._budget.worst.of_call()
        self._budget.reserve(worst * len(requests))
        stop_key = f"stop/ask/{self._rounds}"
        self._rounds += 1
        try:
            # A recorded stop comes again at the same place; what it had answered is in the journal.
            if self._journal.get(stop_key) is not None:
                raise TimeoutError
            answered = all(self._journal.get(_key(r)) is not None for r in requests)
            async with asyncio.timeout(None if answered else self._budget.seconds_left()):
                return await asyncio.gather(*(self._one(request) for request in requests))
        except TimeoutError:
            if self._journal.get(stop_key) is None:
                self._journal.put(stop_key, {}, self._budget.elapsed())
            raise BudgetExceeded("seconds") from None
        finally:
            for known in (self._journal.get(_key(request)) for request in requests):
                self._budget.settle(worst, Spend() if known is None else _recorded(known).cost)

    async def _one(self, request: OptimiserRequest) -> _Outcome:
        key = _key(request)
        text = json.dumps([request.role, [m.to_dict() for m in request.messages]])
        mark = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        known = self._journal.get(key)
        if known is not None:
            if known["request"] != mark:
                raise RunError(
                    f"the journal has a different request for {request.step_key!r}, from another "
                    "version of the search; start a new run"
                )
            return _recorded(known)
        async with self._gate:
            try:
                got = await self._ask(request.role, request.messages, request.step_key)
                answer: JSON = {"text": got.text, "usage": asdict(got.usage)}
            except EngineError as error:
                answer = self._lost(error)
        self._journal.put(key, {"request": mark, **answer}, self._budget.elapsed())
        return _recorded(answer)

    def _lost(self, error: EngineError) -> JSON:
        """What is kept of a request that failed for good. A refusal costs nothing; of a request
        that nothing is known of, the worst case is charged."""
        flag = isinstance(error, RemoteError)
        usage = Usage() if flag else self._budget.worst.optimiser_call or Usage()
        refused = flag and error.status in _REFUSED
        return {"text": "", "usage": asdict(usage), "problem": str(error), "refused": refused}


def _key(request: OptimiserRequest) -> str:
    return f"ask/{request.step_key}"


def _recorded(known: JSON) -> _Outcome:
    problem, cost = known.get("problem", ""), SearchBudget.call(Usage(**known["usage"]))
    return _Outcome(known["text"], problem, cost, bool(problem), known.get("refused", False))


def _again(request: OptimiserRequest, reply: _Outcome, outcome: _Outcome) -> OptimiserRequest:
    messages = repair(request.messages, reply.text, outcome.problem)
    return OptimiserRequest(request.role, messages, f"{request.step_key}/repair")
