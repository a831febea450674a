"""One node under way: ask the router, reserve, ask the worker, verify, until it ends.

Between the router's choice and the reservation nothing waits, so a choice that its mask allowed
can always be paid. Whatever ends a request early, a timeout, the deadline or a cancellation, its
step is written down first, at the bound of its cost: a provider may bill what nobody waited for.
`executor.py` starts these and is where to read on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tutelage.errors import RewardError
from tutelage.orchestration.execution.record import NodeResult, Step, answer_json, step_json
from tutelage.orchestration.execution.verifiers import Verdict
from tutelage.orchestration.execution.workers import Answer, WorkError, legal
from tutelage.orchestration.routing.contract import Choice, RouteState, Tried, check_choice

if TYPE_CHECKING:
    from tutelage.orchestration.execution.executor import PlanRun


async def run_node(run: PlanRun, node: int) -> NodeResult:
    """Execute one node; raises only what a user must mend, and cancellation."""
    return await NodeRun(run, node).run()


@dataclass(slots=True)
class _OpenStep:
    """A step that has not ended."""

    index: int
    choice: Choice
    worker: str
    started: float
    requests: list[Answer]
    queued: float = 0.0
    verdict: Verdict | None = None


class NodeRun:
    """The tries at one node."""

    def __init__(self, run: PlanRun, node: int) -> None:
        self._run, self._node = run, node
        self._work = run.work(node)
        self._pool = run.executor.pool
        self._legal = legal(self._pool.workers, self._work)
        self._estimates = tuple(self._pool.estimate(w, self._work) for w in self._pool.workers)
        self._judged = run.executor.verifiers.bound(self._work)
        """USD that a verdict on an answer of the usual length may cost."""
        self._started = run.now
        mine = [step for step in run.steps.values() if step.node == node]
        self._steps: list[Step] = sorted(mine, key=lambda step: step.index)
        self._tries = self._tried()

    async def run(self) -> NodeResult:
        """See `run_node`."""
        try:
            async with asyncio.timeout(self._run.settings.node_timeout):
                return await self._until_ended()
        except TimeoutError:
            return self._result("failed", reason="timeout")

    async def _until_ended(self) -> NodeResult:
        if self._steps and self._steps[-1].passed:
            return self._result("succeeded", self._steps[-1])  # ended, and killed before it said so
        while True:
            state, blocked = await self._state()
            if not state.candidates and not state.mask[state.accept]:
                return self._result(
                    "failed", reason="budget" if blocked else self._why("no worker is left")
                )
            choice = check_choice(state, self._run.executor.router.choose(state))
            if choice.action == state.stop:
                step = self._decided(choice, "stop")
                told = "stopped by the router" if state.candidates else "no worker is left"
                return self._result(
                    "failed", reason="budget" if blocked else self._why(told), at=step
                )
            if choice.action == state.accept:
                self._decided(choice, "accept")
                return self._result("accepted", self._answered())
            step = await self._try(choice)
            self._tries = self._tried()
            if step.passed:
                return self._result("succeeded", step)

    async def _state(self) -> tuple[RouteState, bool]:
        """What the router sees, and whether only the budget keeps workers from being asked."""
        run, settings = self._run, self._run.settings
        tried = {attempt.worker for attempt in self._tries}
        asked = len(self._tries) < settings.max_tries
        open_to = [can and asked and worker not in tried for worker, can in enumerate(self._legal)]
        while True:
            fits = [
                can and run.budget.fits(estimate.bound + self._judged)
                for can, estimate in zip(open_to, self._estimates, strict=True)
            ]
            if any(fits) or not any(open_to) or run.budget.open == 0:
                break
            # What others have reserved and do not use may do for this one.
            await run.budget.changed()
        answered = self._answered()
        mask = (*fits, answered is not None, True)
        deadline = settings.deadline
        state = RouteState(
            plan=run.plan,
            work=self._work,
            workers=self._pool.workers,
            mask=mask,
            estimates=self._estimates,
            tries=self._tries,
            load=tuple(run.executor.slots().load),
            done={k: result.kept for k, result in run.results.items()},
            ends=dict(run.ends),
            spent=run.budget.spent,
            budget_left=run.budget.left,
            elapsed=run.now,
            deadline_left=None if deadline is None else deadline - run.now,
            max_tries=settings.max_tries,
            seeds=self._work.seeds.child("route", len(self._steps)),
            references=run.references,
        )
        return state, any(open_to) and not any(fits)

    async def _try(self, choice: Choice) -> Step:
        """Ask the chosen worker, again while its server is busy, and verify."""
        run, worker = self._run, self._pool.workers[choice.action]
        opened = _OpenStep(run.dispatched, choice, worker.name, run.now, [])
        run.dispatched += 1
        run.tell(
            "dispatch",
            step=opened.index,
            node=self._node,
            attempt=len(self._steps),
            worker=worker.name,
            choice=choice.action,
            log_prob=choice.log_prob,
            mask=[int(m) for m in choice.mask],
        )
        bound = self._estimates[choice.action].bound
        run.budget.reserve(bound)  # its mask said that it fits
        slots = run.executor.slots()
        slots.load[choice.action] += 1
        try:
            answer = await self._request(opened, bound)
            for retry in range(run.settings.retries):
                if answer.error is None or not answer.error.transient:
                    break
                await asyncio.sleep(self._pause(retry, answer.error))
                if not run.budget.reserve(bound):
                    break
                answer = await self._request(opened, bound)
            await self._verify(opened, answer)
        finally:
            slots.load[choice.action] -= 1
            step = self._close(opened)
        return step

    async def _verify(self, opened: _OpenStep, answer: Answer) -> None:
        """Give the step its verdict, within the budget where a verdict costs something."""
        run, verifiers = self._run, self._run.executor.verifiers
        bound = verifiers.bound(self._work, answer)
        if bound and not run.budget.reserve(bound):
            told = f"no verdict: it may cost {bound:.6f} USD, and the budget has less left"
            opened.verdict = Verdict(False, told, checked=False)
            return
        if bound:
            run.tell("verify", step=opened.index, node=self._node, bound=bound)
            opened.verdict = Verdict(False, "the check was given up", checked=False, cost=bound)
        try:
            opened.verdict = await verifiers.check(self._work, answer)
        except RewardError as error:
            opened.verdict = Verdict(False, f"no verdict: {error}", cost=bound)
        finally:
            if bound:
                run.budget.settle(bound, 0.0 if opened.verdict is None else opened.verdict.cost)

    async def _request(self, opened: _OpenStep, bound: float) -> Answer:
        """One request whose bound is reserved; settles it, whatever comes."""
        run, place = self._run, opened.choice.action
        slots, loop = run.executor.slots(), asyncio.get_running_loop()
        worker = self._pool.workers[place]
        number = sum(len(step.requests) for step in self._steps) + len(opened.requests)
        work = replace(self._work, attempt=number)
        answer: Answer | None = None
        asked = begun = loop.time()
        sent = False
        try:
            async with slots.by_worker[place], slots.all:
                begun = loop.time()
                opened.queued += begun - asked
                sent = True
                run.tell("request", step=opened.index, node=self._node, worker=worker.name,
                         bound=bound)  # fmt: skip
                try:
                    async with asyncio.timeout(run.settings.try_timeout):
                        answer = await self._pool.execute(worker, work)
                except TimeoutError:
                    told = f"no answer within {run.settings.try_timeout} s"
                    answer = _cut("timeout", told, bound, loop.time() - begun, self._pool.mock)
                return answer
        finally:
            if answer is None and sent:
                told = "the request was given up"
                answer = _cut("cancelled", told, bound, loop.time() - begun, self._pool.mock)
            elif not sent:
                opened.queued += loop.time() - asked
            run.budget.settle(bound, 0.0 if answer is None else answer.cost)
            if answer is not None:
                opened.requests.append(answer)
                run.tell("answer", step=opened.index, node=self._node, worker=worker.name,
                         answer=answer_json(answer))  # fmt: skip

    def _pause(self, retry: int, error: WorkError) -> float:
        settings = self._run.settings
        if error.retry_after is not None:
            return min(max(0.0, error.retry_after), settings.backoff_max)
        drawn = self._work.seeds.child("pause", len(self._steps), retry).python().random()
        return min(settings.backoff_max, settings.backoff * 2.0**retry * (0.5 + drawn))

    # What is written down

    def _close(self, opened: _OpenStep) -> Step:
        step = Step(
            index=opened.index,
            node=self._node,
            attempt=len(self._steps),
            action="worker",
            worker=opened.worker,
            choice=opened.choice,
            requests=tuple(opened.requests),
            verdict=opened.verdict,
            started=opened.started,
            ended=self._run.now,
            queued=opened.queued,
        )
        return self._keep(step)

    def _decided(self, choice: Choice, action: str) -> Step:
        now = self._run.now
        index, self._run.dispatched = self._run.dispatched, self._run.dispatched + 1
        return self._keep(
            Step(index, self._node, len(self._steps), "accept" if action == "accept" else "stop",
                 None, choice, started=now, ended=now)
        )  # fmt: skip

    def _keep(self, step: Step) -> Step:
        self._steps.append(step)
        self._run.steps[step.index] = step
        self._run.tell("step", step=step_json(step))
        return step

    def _tried(self) -> tuple[Tried, ...]:
        names = {worker.name: i for i, worker in enumerate(self._pool.workers)}
        return tuple(
            Tried(names[step.worker], step.answer, step.passed)
            for step in self._steps
            if step.worker in names and step.answer is not None and not _given_up(step.answer)
        )

    def _answered(self) -> Step | None:
        """The last step with an answer that could be kept."""
        for step in reversed(self._steps):
            if step.answer is not None and step.answer.error is None:
                return step
        return None

    def _why(self, told: str) -> str:
        """A reason, with that of the last try."""
        found = [step.verdict.reason for step in self._steps if step.verdict is not None]
        return f"{told}: {found[-1]}" if found else told

    def _result(
        self, status: str, kept: Step | None = None, reason: str = "", at: Step | None = None
    ) -> NodeResult:
        answer = None if kept is None else kept.answer
        verdict = None if kept is None else kept.verdict
        return NodeResult(
            node=self._node,
            status="succeeded" if status == "succeeded"
            else "accepted" if status == "accepted" else "failed",
            output=None if answer is None else answer.output,
            worker=None if kept is None else kept.worker,
            reason=reason,
            seconds=sum(step.seconds for step in self._steps),
            started=self._started,
            ended=self._run.now if at is None else at.ended,
            checked=verdict is None or verdict.checked,
            correct=None if answer is None else answer.correct,
        )  # fmt: skip


def _given_up(answer: Answer) -> bool:
    """Whether a request ended for no fault of its worker, who may be asked again."""
    return answer.error is not None and answer.error.kind == "cancelled"


def _cut(kind: str, message: str, bound: float, seconds: float, mock: bool) -> Answer:
    """The answer that nobody waited for: its cost is the bound."""
    error = WorkError("timeout" if kind == "timeout" else "cancelled", message)
    return Answer(cost=bound, seconds=seconds, error=error, mock=mock, estimated=True)
