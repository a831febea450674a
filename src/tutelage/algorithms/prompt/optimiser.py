"""The optimiser LLM as a search uses it: budgeted, journalled, repaired once.

Requests of one step go out together and are reserved together; their replies are settled in the
order of the requests. A request that fails for good is an empty reply with a reason, never a crash:
the search then has one proposal less. `requests.py` has the texts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tutelage.algorithms.prompt.budget import Budget, BudgetSpent, Spend, spend_of_call
from tutelage.algorithms.prompt.contract import Ask, Reply, Usage, usage_to_dict
from tutelage.algorithms.prompt.edits import Rejected
from tutelage.algorithms.prompt.journal import Journal
from tutelage.algorithms.prompt.requests import repair
from tutelage.errors import EngineError, RunError
from tutelage.types import Message


@dataclass(frozen=True, slots=True)
class Request:
    """One question to an optimiser role; `step_key` is unique in the search."""

    role: str
    messages: Sequence[Message]
    step_key: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The text that was read from a reply, or why there is none, and what it cost."""

    text: str
    problem: str = ""
    cost: Spend = field(default_factory=Spend)


class Optimiser:
    """Asks through budget and journal; `concurrency` caps the requests under way."""

    def __init__(self, ask: Ask, budget: Budget, journal: Journal, concurrency: int = 8) -> None:
        self._ask = ask
        self._budget = budget
        self._journal = journal
        self._gate = asyncio.Semaphore(concurrency)
        self._rounds = 0

    async def read(
        self, requests: Sequence[Request], reader: Callable[[str], str]
    ) -> list[Outcome]:
        """Ask all, read each reply, ask once more where `reader` raises `Rejected`.

        Raises `BudgetSpent` before anything is sent that does not fit.
        """
        first = await self._ask_all(requests)
        outcomes = [_outcome(reply, reader) for reply in first]
        again = [i for i, made in enumerate(outcomes) if made.problem]
        mended = await self._ask_all([_again(requests[i], first[i], outcomes[i]) for i in again])
        for i, reply in zip(again, mended, strict=True):
            second = _outcome(reply, reader)
            cost = outcomes[i].cost + second.cost
            outcomes[i] = Outcome(second.text, second.problem, cost)
        return outcomes

    async def _ask_all(self, requests: Sequence[Request]) -> list[Reply]:
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
            raise BudgetSpent("seconds") from None
        finally:
            for request in requests:
                known = self._journal.get(_key(request))
                actual = Spend() if known is None else spend_of_call(Usage(**known["usage"]))
                self._budget.settle(worst, actual)

    async def _one(self, request: Request) -> Reply:
        key = _key(request)
        said = json.dumps([request.role, [m.to_dict() for m in request.messages]])
        mark = hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
        known = self._journal.get(key)
        if known is not None:
            if known["request"] != mark:
                raise RunError(
                    f"the journal holds another request under {request.step_key!r}: it was kept by "
                    "another version of the search; start a new run"
                )
            return Reply(known["text"], Usage(**known["usage"]))
        async with self._gate:
            try:
                reply = await self._ask(request.role, request.messages, request.step_key)
            except EngineError:
                # The endpoint's retries are used up; the worst case is charged.
                reply = Reply("", self._budget.worst.optimiser_call or Usage())
        payload = {"request": mark, "text": reply.text, "usage": usage_to_dict(reply.usage)}
        self._journal.put(key, payload, self._budget.elapsed())
        return reply


def _key(request: Request) -> str:
    return f"ask/{request.step_key}"


def _outcome(reply: Reply, reader: Callable[[str], str]) -> Outcome:
    cost = spend_of_call(reply.usage)
    try:
        return Outcome(reader(reply.text), cost=cost)
    except Rejected as refused:
        return Outcome("", refused.reason, cost)


def _again(request: Request, reply: Reply, outcome: Outcome) -> Request:
    messages = repair(request.messages, reply.text, outcome.problem)
    return Request(request.role, messages, f"{request.step_key}/repair")
