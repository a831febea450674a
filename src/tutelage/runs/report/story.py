"""What was done, in three plain sentences, and what the numbers let one conclude.

Every sentence is made from what the run recorded; one that would need a missing fact is left out
or says less. Conclusions are cautious on purpose: intervals that overlap are called so. `view.py`
puts the sentences on the page.
"""

from __future__ import annotations

from tutelage.runs.measured import NO_TOOLS, REWARD, SUCCESS, control_estimator, read
from tutelage.runs.report.rates import WORDS, told_in
from tutelage.runs.report.source import Source, number
from tutelage.runs.report.words import counted, cut, exact_percent, points, short
from tutelage.tasks.overlap import named
from tutelage.tools.loading import shown_name


def headline(source: Source) -> str:
    """The result in one line."""
    what, withheld = told_in(source)[0], None
    tasks = named(source.result)
    for kind in ("sampled", "greedy"):
        before, after = (read(source.result, f"{when}_{kind}") for when in ("before", "after"))
        if after is not None and after.withheld:
            withheld = after
        old, new = what.of(before), what.of(after)
        if new is None:
            continue
        ends = " to ".join(WORDS[what](value) for value in (old, new) if value is not None)
        if what is REWARD:
            return f"Mean reward{'' if old is None else ' from'} {ends} on {tasks} tasks"
        return f"{'' if old is None else 'From '}{ends} of {tasks} tasks solved"
    if withheld is not None:
        return (
            f"No result: only {withheld.judged} of {withheld.rollouts} {tasks} rollouts were judged"
        )
    return (
        "A run without an outcome yet" if not source.result else "A run without a before and after"
    )


def story(source: Source) -> list[tuple[str, str]]:
    """What was done, as titles and sentences: the cold start, the learning, the measuring."""
    chapters = (
        ("Supervised" if source.phase("sft") else "Cold start", _cold_start(source)),
        ("Learning", _learning(source)),
        ("Measuring", _measuring(source)),
    )
    return [(title, sentence) for title, sentence in chapters if sentence]


def conclusions(source: Source) -> list[str]:
    """What the table of before and after says about tools and about the control."""
    sentences = (_against_control(source), _without_tools(source))
    return [s for s in sentences if s]


def _guess_share(source: Source) -> float | None:
    """The share of the mixed demonstrations that guess: as measured, else as configured."""
    measured = number(source.result, "guess_share")
    if (measured is None or not 0 <= measured <= 1) and source.config is not None:
        return source.config.config.sft.guess_share
    return measured


def _cold_start(source: Source) -> str:
    steps = len(source.curve("cold_start", "loss/sft"))
    config = None if source.config is None else source.config.config
    if config is None:
        who = "The policy"
    elif config.model.path is None:
        who = f"A small language model (size {config.model.size}), built from scratch,"
    else:
        who = f"The model {cut(config.model.path, 120)}"
    shown = len(source.curve("sft", "loss/sft"))
    if shown:
        return f"{who} was trained on demonstrations, for {counted(shown, 'step')}."
    if not steps:
        return f"{who} went into training as it was, without a cold start." if config else ""
    if not source.result and not source.phase("rl"):
        return f"{who} is being trained on demonstrations: {counted(steps, 'step')} so far."
    sentence = f"{who} was first trained on demonstrations, for {counted(steps, 'step')}"
    guess = _guess_share(source)
    mixed = source.mixed_steps
    if guess is None or mixed == 0:
        return f"{sentence}."
    where = f"the last {counted(mixed, 'step')}" if mixed is not None else "the mixed part"
    if mixed is not None and mixed >= steps:
        where = "these steps" if mixed == steps else "the mixed steps, which come last"
    return (
        f"{sentence}; in {where}, {exact_percent(guess)} of the demonstrations, drawn at random, "
        "guess an answer instead of calling their tools."
    )


def _learning(source: Source) -> str:
    steps = number(source.result, "rl_steps")
    steps = len(source.phase("rl")) if steps is None else int(steps)
    if not steps:
        return ""
    config = None if source.config is None else source.config.config
    name = f" ({shown_name(config.algorithm.adv_estimator).upper()})" if config else ""
    rollouts = source.trained_rollouts  # those of the result are of all phases
    played = f": {counted(steps, 'step')}"
    if rollouts:
        played = f": {counted(rollouts, 'rollout')} in {counted(steps, 'step')}"
    again = f", {config.agent.num_chains} for each task," if config and rollouts else ""
    than = "than the others of its task" if config and config.agent.num_chains > 1 else ""
    reinforced = f"what it sampled was reinforced where it earned more {than}".rstrip()
    if not than:
        reinforced = "what it sampled was reinforced by what it earned"
    return (
        f"Then it learned from rewards alone by reinforcement learning{name}{played}{again} "
        f"played with its tools; {reinforced}."
    )


def _measuring(source: Source) -> str:
    tasks = number(source.result, "test_tasks") or number(source.result, "val_tasks")
    if tasks is None:
        return ""
    config = None if source.config is None else source.config.config
    apart = ""
    if config is not None and config.recipe == "math":
        own = config.data.train_files or config.data.val_files
        apart = "" if own else ", problems that training never shows"
    what = "The mean reward" if source.kind.graded else "Success"
    kind = f"{named(source.result)} task"
    sentence = f"{what} is measured before and after on {counted(int(tasks), kind)}"
    if _has(source, "judged_control") or _has(source, "success_control"):
        estimator = cut(control_estimator(source.result) or "another", 40)
        return (
            f"{sentence}{apart}; beside it stands a control: the same training from the same "
            f"start, with as many steps and rollouts and the estimator {estimator}."
        )
    return f"{sentence}{apart}."


def _against_control(source: Source) -> str:
    what = told_in(source)[0]
    told, against = (read(source.result, f"{name}_sampled") for name in ("after", "control"))
    after, control = what.of(told), what.of(against)
    if told is None or against is None or after is None or control is None:
        return ""
    if abs(after - control) < 5e-4:
        return f"RL and the control end at the same sampled {what.name}."
    side = "above" if after > control else "below"
    gap = points(abs(after - control), signed=False) if what is SUCCESS else short(after - control)
    sentence = f"RL ends {gap.lstrip('−')} {side} the control, sampled"
    ends = what.interval(told), what.interval(against)
    if ends[0] is None or ends[1] is None:
        return f"{sentence}."
    overlap = ends[0][0] <= ends[1][1] and ends[1][0] <= ends[0][1]
    return f"{sentence}; their intervals {'overlap' if overlap else 'do not overlap'}."


def _without_tools(source: Source) -> str:
    what = told_in(source)[0]
    bare, after = (what.of(read(source.result, n)) for n in (NO_TOOLS, "after_greedy"))
    if bare is None:
        return ""
    sentence = (
        "With the tools taken out of the prompt and their results withheld, the trained policy "
        f"{'solves' if what is SUCCESS else 'earns'} {WORDS[what](bare)}, greedy"
    )
    if after is None:
        return f"{sentence}."
    sentence += f", against {WORDS[what](after)} with them"
    return f"{sentence}: the difference is tool use." if bare < after else f"{sentence}."


def _has(source: Source, prefix: str) -> bool:
    return any(key.startswith(prefix) for key in source.result)
