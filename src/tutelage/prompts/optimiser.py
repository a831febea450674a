"""The optimiser LLM in a search: within the budget, journalled, with one repair request.

Requests of a step are sent and reserved together; their replies are settled in the order of the
requests. A request that fails after retries is an empty reply with the endpoint's reason, and the
search has one proposal less. If all requests of a step fail, the search stops with that reason.
`requests.py` has the texts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from tutelage.engine.usage import Usage
from tutelage.errors import EngineError, RemoteError
from tutelage.prompts.budget import SearchBudget
from tutelage.prompts.contract import Ask
from tutelage.prompts.edits import RejectedEdit
from tutelage.prompts.evaluator import SearchJournal
from tutelage.prompts.requests import repair
from tutelage.runs.rounds import Spend
from tutelage.types import JSON, Message


@dataclass(frozen=True, slots=True)
class OptimiserRequest:
    """Request to an optimiser role; `step_key` is unique in the search."""

    role: str
    messages: Sequence[Message]
    step_key: str

    @property
    def key(self) -> str:
        """Return the key of the reply in the journal, which depends on the request text."""
        text = json.dumps([self.role, [m.to_dict() for m in self.messages]])
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return f"ask/{self.step_key}/{digest}"


@dataclass(frozen=True, slots=True)
class _ReplyOutcome:
    """Text or problem of a reply, and its cost."""

    text: str
    problem: str = ""
    cost: Spend = field(default_factory=Spend)
    unanswered: bool = False

    @property
    def reason(self) -> str:
        """Return the problem with its type, for the lineage."""
        return f"{'unanswered' if self.unanswered else 'malformed'}: {self.problem}"

    def read(self, parser: Callable[[str], str]) -> _ReplyOutcome:
        """Parse the text with `parser`; a `RejectedEdit` becomes the problem."""
        if self.problem:
            return self
        try:
            return replace(self, text=parser(self.text))
        except RejectedEdit as rejected:
            return replace(self, text="", problem=rejected.reason)


class Optimiser:
    """Sends requests to the optimiser LLM within the budget, and stores the replies."""

    def __init__(self, ask: Ask, budget: SearchBudget, journal: SearchJournal) -> None:
        self._ask, self._budget, self._journal = ask, budget, journal

    async def ask(
        self, requests: Sequence[OptimiserRequest], parser: Callable[[str], str]
    ) -> list[_ReplyOutcome]:
        """Send all requests and parse each reply. A request is repeated once if `parser` raises
        `RejectedEdit`.

        Raises `BudgetExceeded` before a request that does not fit, `EngineError` if the endpoint
        answers no request, after which a resume sends them again.
        """
        first = await self._send(requests)
        if first and all(reply.problem for reply in first):
            self._journal.forget([request.key for request in requests])
            raise EngineError(
                f"the optimiser LLM ({requests[0].role}) does not answer: {first[0].problem}; "
                "fix it, then resume"
            )
        outcomes = [reply.read(parser) for reply in first]
        again = [i for i, read in enumerate(outcomes) if read.problem and not first[i].problem]
        repairs: list[OptimiserRequest] = []
        for i in again:
            asked, key = requests[i], f"{requests[i].step_key}/repair"
            messages = repair(asked.messages, first[i].text, outcomes[i].problem)
            repairs.append(OptimiserRequest(asked.role, messages, key))
        for i, reply in zip(again, await self._send(repairs), strict=True):
            cost = outcomes[i].cost + reply.cost
            outcomes[i] = replace(reply.read(parser), cost=cost, unanswered=False)
        return outcomes

    async def _send(self, requests: Sequence[OptimiserRequest]) -> list[_ReplyOutcome]:
        """Send requests concurrently within the budget, and return their outcomes in order."""
        worst = self._budget.worst.call_cost()
        self._budget.reserve(worst * len(requests))
        outcomes = await asyncio.gather(*(self._send_one(request) for request in requests))
        for outcome in outcomes:
            self._budget.settle(worst, outcome.cost)
        return outcomes

    async def _send_one(self, request: OptimiserRequest) -> _ReplyOutcome:
        """Return the outcome of a request, from the journal if possible, else from the endpoint."""
        answer: JSON | None = self._journal.get(request.key)
        if answer is None:
            try:
                reply = await self._ask(request.role, request.messages, request.step_key)
                answer = {"text": reply.text, "usage": asdict(reply.usage), "problem": ""}
            except EngineError as error:
                # A refusal costs nothing; where nothing is known the worst case is charged.
                refused = isinstance(error, RemoteError)
                usage = Usage() if refused else self._budget.worst.optimiser_call or Usage()
                answer = {"text": "", "usage": asdict(usage), "problem": str(error)}
            self._journal.put(request.key, answer)
        problem, cost = answer["problem"], SearchBudget.call_cost(Usage(**answer["usage"]))
        return _ReplyOutcome(answer["text"], problem, cost, bool(problem))
