"""One running node: what its router sees, what workers are asked, and what is written down.

Between the router's choice and the reservation nothing waits, so a choice that its mask allowed
can always be paid. Whatever ends a request early, a timeout, the deadline or a cancellation, its
step is written down first, at the bound of its cost: a provider may bill what nobody waited for.
`loop.py` has the order of these, `plan_run.py` the plan that the node belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Literal, cast

from tutelage.errors import RewardError
from tutelage.orchestration.execution.plan_run import PlanRun
from tutelage.orchestration.execution.pools.tools import LATE, Doubt, ToolPool
from tutelage.orchestration.execution.record import (
    Action,
    NodeResult,
    NodeStep,
)
from tutelage.orchestration.execution.workers import (
    Subtask,
    Verification,
    Worker,
    WorkerAnswer,
    WorkerError,
    capable_workers,
)
from tutelage.orchestration.plan.arguments import call_key
from tutelage.orchestration.routing.contract import Choice, PreviousTry, RouteState


class NodeRun:
    """The tries at one node; `result` is there once it has ended."""

    def __init__(self, run: PlanRun, node: int) -> None:
        self._run, self._node = run, node
        self._work = run.work(node)
        self._pool, self._slots = run.place.pool, run.place.slots()
        self._legal = capable_workers(self._pool.workers, self._work)
        self._estimates = tuple(self._pool.estimate(w, self._work) for w in self._pool.workers)
        self._judged = run.place.verifiers.bound(self._work)
        """USD that a verdict on an answer of the usual length may cost."""
        self._started = run.now
        self._steps = list(run.earlier.get(node, ()))
        self._blocked = False
        """Whether only the budget keeps workers from being asked."""
        self._result: NodeResult | None = None
        self._limit = asyncio.timeout(None)

    @property
    def result(self) -> NodeResult:
        """What became of the node, once it has ended."""
        assert self._result is not None
        return self._result

    @asynccontextmanager
    async def under_way(self) -> AsyncGenerator[None]:
        """Holds the node's timeout."""
        seconds = self._run.settings.node_timeout
        try:
            async with asyncio.timeout(seconds) as self._limit:
                yield
        except TimeoutError as error:
            told = "not done within {:g} s (--node-timeout gives it longer)"
            self._end("failed", reason=f"timeout: {_late(self._limit, seconds, told, error)}")

    # What its router may choose

    async def choices(self) -> RouteState | None:
        """What the router sees, as soon as the budget has something for it; None once the node has
        ended, or when nothing is left to choose."""
        if self._steps and self._steps[-1].passed:
            self._end("succeeded", self._steps[-1])
        if self._result is not None:
            return None
        tried, settings = self._tried(), self._run.settings
        asked = {attempt.worker for attempt in tried}
        open_to = [
            can and len(tried) < settings.max_tries and worker not in asked
            for worker, can in enumerate(self._legal)
        ]
        fits, answered = await self._affordable(open_to), self._answered()
        self._blocked = any(open_to) and not any(fits)
        if not any(fits) and answered is None:
            self._end("failed", reason=self._why("no worker is left"))
            return None
        run = self._run
        return RouteState(
            plan=run.plan,
            work=self._work,
            workers=self._pool.workers,
            mask=(*fits, answered is not None, True),
            estimates=self._estimates,
            tries=tried,
            load=tuple(self._slots.load),
            done=run.ended.done(),
            ends=run.ended.ends(),
            spent=run.budget.spent,
            budget_left=run.budget.left_for(run),
            elapsed=run.now,
            deadline_left=run.deadline_left,
            max_tries=settings.max_tries,
            seeds=self._work.seeds.child("route", len(self._steps)),
            references=run.references,
        )

    async def _affordable(self, open_to: list[bool]) -> list[bool]:
        """Which of these workers the budget has enough left for."""
        budget = self._run.budget
        while True:
            fits = [
                can and budget.fits(estimate.bound + self._judged, self._run)
                for can, estimate in zip(open_to, self._estimates, strict=True)
            ]
            if any(fits) or not any(open_to) or budget.open == 0:
                return fits
            # What others have reserved and do not use may do for this one.
            await budget.changed()

    def stop(self, choice: Choice, state: RouteState) -> None:
        """Give the node up."""
        step = self._next("stop", choice)
        self._keep(step)
        message = "stopped by the router" if state.candidates else "no worker is left"
        self._end("failed", reason=self._why(message), at=step)

    def accept(self, choice: Choice) -> None:
        """Keep the last answer, although its verifier did not pass it."""
        self._keep(self._next("accept", choice))
        self._end("accepted", self._answered())

    # One try

    @contextmanager
    def dispatched(self, choice: Choice) -> Generator[NodeStep]:
        """A try with the chosen worker, whose place and cost are reserved; kept when it ends."""
        run, worker = self._run, choice.action
        step = self._next("worker", choice, self._pool.workers[worker].name)
        fields = step.to_json()
        keys = ("attempt", "worker", "choice", "log_prob", "mask")
        self._tell("dispatch", step, **{key: fields[key] for key in keys})
        run.budget.reserve(self._estimates[worker].bound, run)  # its mask said that it fits
        run.begun(self._node)
        self._slots.load[worker] += 1
        try:
            yield step
        finally:
            self._slots.load[worker] -= 1
            step.ended = run.now
            self._keep(step)

    async def asks_again(self, step: NodeStep, answer: WorkerAnswer) -> bool:
        """Whether a busy server is asked once more, which is after a pause."""
        settings, error, retry = self._run.settings, answer.error, len(step.requests) - 1
        if error is None or not error.transient or retry >= settings.retries:
            return False
        pause = error.retry_after
        if pause is None:
            drawn = self._work.seeds.child("pause", len(self._steps), retry).python().random()
            pause = settings.backoff * 2.0**retry * (0.5 + drawn)
        await asyncio.sleep(min(max(0.0, pause), settings.backoff_max))
        return self._run.budget.reserve(self._estimates[step.choice.action].bound, self._run)

    async def request(self, step: NodeStep) -> WorkerAnswer:
        """One request whose bound is reserved; settles it, whatever comes."""
        run, place = self._run, step.choice.action
        bound, loop = self._estimates[place].bound, asyncio.get_running_loop()
        worker = self._pool.workers[place]
        number = sum(len(before.requests) for before in (*self._steps, step))
        work = replace(self._work, attempt=number)
        answer: WorkerAnswer | None = None
        begun: float | None = None
        asked = loop.time()
        try:
            if refused := await self._refused(worker, work):
                begun = loop.time()
                answer = refused
                return answer
            async with self._slots.by_worker[place], self._slots.all:
                begun = loop.time()
                given = self._side_effects(worker, work)
                told = {} if given is None else {"arguments": given}
                self._tell("request", step, worker=step.worker, bound=bound, **told)
                limit, seconds = asyncio.timeout(run.settings.try_timeout), run.settings.try_timeout
                try:
                    async with limit:
                        answer = await self._pool.execute(worker, work)
                except TimeoutError as error:
                    message = _late(
                        limit, seconds, "no answer within {:g} s (--try-timeout)", error
                    )
                    answer = self._cut("timeout", message, bound, loop.time() - begun, worker, work)
                return answer
        finally:
            step.queued += (loop.time() if begun is None else begun) - asked
            if answer is None and begun is not None:
                message = "the request was given up"
                answer = self._cut("cancelled", message, bound, loop.time() - begun, worker, work)
            run.budget.settle(bound, 0.0 if answer is None else answer.cost)
            if answer is not None:
                run.watch(step.worker or "", answer.cost, bound)
                step.requests += (answer,)
                self._tell("answer", step, worker=step.worker, answer=answer.to_json())

    async def _refused(self, worker: Worker, work: Subtask) -> WorkerAnswer | None:
        """The answer to a call that the caller does not permit, or that it says was done already;
        the wait for that counts as queued.
        What was refused once is not asked about again, nor are equal calls that wait meanwhile."""
        arguments, pool = self._side_effects(worker, work), cast("ToolPool", self._pool)
        if arguments is None:
            return None
        call, refusals = call_key(worker.name, arguments, pool.tools), self._run.refusals
        with self._unhurried():
            async with self._run.asking[call]:
                if not (said := refusals.get(call, "")):
                    said = await pool.permit(worker, arguments, self._doubt(call))
                if isinstance(said, WorkerAnswer):
                    return replace(said, arguments=arguments)
                if said:
                    refusals[call] = said
        error = WorkerError("refused", said)
        return WorkerAnswer(error=error, arguments=arguments) if said else None

    @contextmanager
    def _unhurried(self) -> Generator[None]:
        """Stops the clock of the node's timeout: it hurries nobody while a question is open."""
        ends, loop = self._limit.when(), asyncio.get_running_loop()
        left = None if ends is None else ends - loop.time()
        self._limit.reschedule(None)
        try:
            yield
        finally:
            self._limit.reschedule(None if left is None else loop.time() + left)

    def _side_effects(self, worker: Worker, work: Subtask) -> str | None:
        """The arguments of a call with side effects; None for another."""
        pool: Any = self._pool
        return pool.with_side_effects(worker, work) if hasattr(pool, "permit") else None

    def _doubt(self, call: str) -> Doubt:
        """What speaks against a call, see `call_key`, beside its side effects."""
        if any(step.answer is not None and _given_up(step.answer) for step in self._steps):
            return "again"
        tools, steps = cast("ToolPool", self._pool).tools, self._run.steps.values()
        answers = ((step.worker or "", step.answer) for step in steps if step.answer is not None)
        cut_off = ((name, each.arguments) for name, each in answers if _cut_off(each))
        if any(args and call_key(name, args, tools) == call for name, args in cut_off):
            return "late"
        return "replanned" if self._node >= self._run.planned else ""

    async def judge_restored(self) -> None:
        """Judge an answer that had come when an earlier process ended, rather than ask again."""
        step = self._steps[-1] if self._steps else None
        if step is not None and step.verdict is None and step.answer and not step.answer.error:
            await self.verify(step, step.answer)
            self._run.tell("step", step=step.to_json())

    async def verify(self, step: NodeStep, answer: WorkerAnswer) -> None:
        """Give the step its verdict, within the budget where a verdict costs something."""
        run, verifiers = self._run, self._run.place.verifiers
        bound = verifiers.bound(self._work, answer)
        if bound and not run.budget.reserve(bound, run):
            message = f"no verdict: it may cost {bound:.6f} USD, and the budget has less left"
            step.verdict = Verification(False, message, checked=False)
            return
        if bound:
            self._tell("verify", step, bound=bound)
            step.verdict = Verification(False, "the check was given up", checked=False, cost=bound)
        try:
            step.verdict = await verifiers.check(self._work, answer)
        except RewardError as error:
            step.verdict = Verification(False, f"no verdict: {error}", cost=bound)
        finally:
            if bound:
                run.budget.settle(bound, 0.0 if step.verdict is None else step.verdict.cost)

    # What is written down

    def _tell(self, event: str, step: NodeStep, **fields: Any) -> None:
        self._run.tell(event, step=step.index, node=self._node, **fields)

    def _next(self, action: Action, choice: Choice, worker: str | None = None) -> NodeStep:
        run, now = self._run, self._run.now
        index, run.dispatched = run.dispatched, run.dispatched + 1
        attempt = len(self._steps)
        return NodeStep(index, self._node, attempt, action, worker, choice, started=now, ended=now)

    def _keep(self, step: NodeStep) -> None:
        self._steps.append(step)
        self._run.add(step)
        self._run.tell("step", step=step.to_json())

    def _tried(self) -> tuple[PreviousTry, ...]:
        names = {worker.name: i for i, worker in enumerate(self._pool.workers)}
        return tuple(
            PreviousTry(names[step.worker], step.answer, step.passed)
            for step in self._steps
            if step.worker in names and step.answer is not None and not _given_up(step.answer)
        )

    def _answered(self) -> NodeStep | None:
        """The last step with an answer that could be kept."""
        usable = (s for s in self._steps[::-1] if s.answer is not None and s.answer.error is None)
        return next(usable, None)

    def _why(self, told: str) -> str:
        """A reason, with that of the last try; the budget where that is all that is in the way."""
        if self._blocked:
            return "budget"
        names = [step.verdict.reason for step in self._steps if step.verdict is not None]
        # Beside a tool there was nobody else from the beginning.
        legal = zip(self._pool.workers, self._legal, strict=True)
        alone = any(can and worker.tool for worker, can in legal)
        return names[-1] if names and alone else f"{told}: {names[-1]}" if names else told

    def _end(
        self,
        status: Literal["succeeded", "accepted", "failed"],
        kept: NodeStep | None = None,
        reason: str = "",
        at: NodeStep | None = None,
    ) -> None:
        seconds = sum(step.seconds for step in self._steps)
        ended = self._run.now if at is None else at.ended
        node_result = NodeResult(
            self._node, status, None, None, reason, seconds, self._started, ended
        )
        if kept is not None and kept.answer is not None:
            checked = kept.verdict is None or kept.verdict.checked
            output, correct = kept.answer.output, kept.answer.correct
            node_result = replace(
                node_result, output=output, worker=kept.worker, checked=checked, correct=correct
            )
        self._result = node_result

    def _cut(
        self,
        kind: Literal["timeout", "cancelled"],
        told: str,
        bound: float,
        seconds: float,
        worker: Worker,
        work: Subtask,
    ) -> WorkerAnswer:
        """The answer that nobody waited for: its cost is the bound, and what has side effects may
        go on."""
        arguments = self._side_effects(worker, work)
        told += LATE if arguments is not None else ""
        return WorkerAnswer(
            cost=bound,
            seconds=seconds,
            error=WorkerError(kind, told),
            mock=self._pool.mock,
            estimated=True,
            arguments=arguments,
        )


_CUT_OFF = ("timeout", "cancelled")


def _late(limit: asyncio.Timeout, seconds: float | None, told: str, error: TimeoutError) -> str:
    """What is `told` of our limit, with its seconds; where it is that of a user's verifier, router
    or pool, what its error says."""
    return (
        told.format(seconds) if limit.expired() else str(error) or "TimeoutError, by no limit here"
    )


def _cut_off(answer: WorkerAnswer) -> bool:
    """Whether nobody waited for the end of a request."""
    error = answer.error
    return error is not None and (error.kind in _CUT_OFF or error.message.endswith(LATE))


def _given_up(answer: WorkerAnswer) -> bool:
    """Whether a request ended for no fault of its worker, which may be asked again."""
    return answer.error is not None and answer.error.kind == "cancelled"
