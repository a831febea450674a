"""Progress of a prompt search: each finished round, and a progress bar.

The search reports to `PromptDisplay`. On a terminal a bar shows the progress and the time left;
elsewhere a line is printed every few seconds (`display.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from tutelage.cli.console import echo_text, number, shorten
from tutelage.cli.display import LiveDisplay
from tutelage.errors import pluralize
from tutelage.prompts.figures import format_spend
from tutelage.runs.rounds import CandidateSummary, Observer, Round, Spend

_SHOWN = 20
"""Maximum number of rewards and of candidates that are printed for a round."""
EXPERIMENT = "experiment"
"""Decision of lineage entries that are not candidates."""
_PIPE_WIDTH = 1000
"""Maximum line width of a round in a file or a pipe, in characters."""
_COUNTS = {"win": "wins", "loss": "losses", "tie": "ties"}


class PromptDisplay(LiveDisplay, Observer):
    """Display of a search on `console`; phases are the stages of the search, and steps are
    rollouts."""

    noun = "rollout"

    def __init__(self, console: Console, *, rollouts: int | None = None, test: int = 0) -> None:
        """Set the maximum number of rollouts in the search, and the number in the held-out test."""
        super().__init__(console)
        self._most = {"search": rollouts, "test": test}
        self._stage = ""

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        """Do nothing, because a stage begins with its first rollout."""

    def on_progress(self, stage: str, done: int, total: int, spent: Spend) -> None:
        """Update the progress bar."""
        if stage != self._stage:
            self._stage = stage
            limit = max(self._most.get(stage) or 0, spent.rollouts + total)
            super().phase("held-out test" if stage == "test" else "searching", steps=limit)
            self.open()
        costs = {"cost": spent.dollars} if spent.dollars else {}
        self.step(spent.rollouts + done, costs)

    def on_round(self, found: Round) -> None:
        """Print the prompt, the candidates and the cost of a round."""
        with self._ignore_closed_stream():
            # In a file or a pipe a line stays whole.
            width = self._console.width if self._console.is_terminal else _PIPE_WIDTH
            for line in round_lines(found, width):
                echo_text(self._console, line, indent=4)


# ---------------------------------------------------------------- words


def round_lines(summary: Round, width: int) -> Iterator[str]:
    """Yield the lines of a round: its prompt, rewards and candidates."""
    yield ""
    yield f"Iteration {summary.number}"
    many = len(summary.components) > 1
    for name, text in sorted(summary.components.items()):
        label = f"Prompt {name}" if many else "Prompt"
        yield f'  {label}: "{shorten(text, max(40, min(width, 100) - 14))}"'
    if summary.rollouts:
        kind = "training" if summary.split == "train" else "validation"
        why = " (key: minibatch)" * (kind == "training" and " of " in summary.tasks)
        yield f"  Tasks: {summary.tasks} {kind} task{'s' * (summary.tasks != '1')}{why}"
        rewards = [f"{r:.2g}" if r % 1 else f"{r:.1f}" for r in summary.rewards[:_SHOWN]]
        more = ", ..." if len(summary.rewards) > _SHOWN else ""
        yield f"  Rewards: [{', '.join(rewards)}{more}]"
        # Too few rewards have no mean.
        average = [] if summary.average is None else [f"{summary.average:.2f}"]
        if summary.lost:
            judged = f"{len(summary.rewards)} of {summary.rollouts} judged"
            average.append(f"{judged}, the others lost to infrastructure")
        yield f"  Average: {'; '.join(average)}"
    if not summary.standings:
        yield "  Nothing new was tried: every task of the round was solved, or edits were repeats"
    trials = [s for s in summary.standings if s.decision == EXPERIMENT]
    candidates = [s for s in summary.standings if s.decision != EXPERIMENT]
    for standing in candidates[:_SHOWN]:
        yield f"  {_format_candidate(standing, max(60, width) - 2)}"
    if len(candidates) > _SHOWN:
        yield f"  and {pluralize(len(candidates) - _SHOWN, 'more candidate')}"
    if trials:
        yield f"  {pluralize(len(trials), 'experiment')}: texts played on one training task each"
    yield f"  Spent: {format_spend(summary.spent.to_dict(), number)}"


def _format_candidate(entry: CandidateSummary, width: int) -> str:
    head = f"{entry.id[:11]}  {entry.operation:<13}"
    if entry.tasks:
        score = "" if entry.reward is None else f"{entry.reward:.2f}"
        pairs = zip(_COUNTS.items(), (entry.wins, entry.losses, entry.ties), strict=True)
        counts = ", ".join(f"{n} {one if n == 1 else many}" for (one, many), n in pairs)
        head += f"  {score} on {entry.tasks:>2} tasks  {counts}"
    reason = ": ".join(text for text in (entry.decision, entry.reason) if text)
    return f"{head}  {shorten(reason, max(80, width - len(head)))}"
