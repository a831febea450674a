"""The lines of the live display, at any width and in any state."""

import io
import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tutelage.cli.console import PlainConsole
from tutelage.cli.display import LiveDisplay, Phase, metric_text

VALUES = {
    "reward/mean": 0.84,
    "val/success_sampled": 0.875,
    "val/success_greedy": 0.91,
    "loss/policy": -0.0123,
    "max_dlogp": 2.1e-6,
    "tokens_per_second": 12345.6,
    "time/step": 1.0,
}


def frame(phase: Phase, values: Mapping[str, float], now: float, width: int = 80) -> str:
    """What the live display draws of a phase after one step."""
    clock = [0.0]
    to = PlainConsole(file=io.StringIO(), width=width, color_system=None)
    display = LiveDisplay(to, clock=lambda: clock[0])
    display.phase(phase.name, steps=phase.steps, seconds=phase.seconds)
    clock[0] = now / 2
    display.step(phase.done, values)
    display.evaluation("rl/greedy", 3, 9)
    clock[0] = now
    with to.capture() as shown:
        to.print(display)
    return shown.get()


@given(
    name=st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=60),
    width=st.integers(20, 200),
    done=st.integers(0, 10**7),
    steps=st.none() | st.integers(1, 10**7),
    seconds=st.none() | st.floats(0, 1e6),
    value=st.floats(),
    now=st.floats(0, 1e7),
)
def test_no_line_is_longer_than_the_terminal(
    name: str,
    width: int,
    done: int,
    steps: int | None,
    seconds: float | None,
    value: float,
    now: float,
) -> None:
    phase = Phase(name, 0.0, steps, seconds, done=done)
    lines = frame(phase, dict.fromkeys(VALUES, value), now, width).splitlines()
    assert lines
    assert all(len(line) <= width for line in lines)


def test_time_left_follows_the_budget_or_the_latest_pace() -> None:
    assert Phase("a", 10.0, seconds=60.0).time_left(30.0) == 40.0
    assert Phase("a", 0.0, steps=100).time_left(5.0) is None
    assert Phase("a", 0.0).time_left(5.0) is None
    phase = Phase("a", 0.0, steps=100)
    # A run that was resumed at step 50: the 50 steps before it took no time here.
    for now, done in ((10.0, 50), (11.0, 51), (12.0, 52)):
        phase = phase.with_report(now, done, {})
    left = phase.time_left(12.0)
    assert left is not None
    assert math.isclose(left, 48.0)
    assert Phase("a", 0.0, seconds=5.0).time_left(9.0) == 0.0


def test_rates_say_how_many_were_judged() -> None:
    whole = {"rollout/judged": 128.0, "rollout/number": 128.0, "reward/mean": 0.84}
    whole |= {"val/judged_sampled": 200, "val/rollouts_sampled": 200, "val/success_sampled": 0.525}
    assert metric_text(whole) == ["reward 0.84 (128/128)", "sampled 52.5 % (200/200)"]
    graded = metric_text(whole | {"val/reward_sampled": 0.61})
    assert graded[1] == "sampled 52.5 % (200/200), reward 0.61"
    few = {**whole, "rollout/judged": 120.0, "rollout/engine_error": 0.0625}
    few |= {"rollout/timeout": 3 / 128, "val/judged_sampled": 190}
    assert metric_text(few) == [
        "reward: 120/128 judged",
        "sampled: 190/200 judged",
        "3 timeout",
        "8 lost: engine error",
    ]


def test_a_rate_that_is_missing_now_is_not_the_last_one() -> None:
    before = Phase("rl", 0.0).with_report(1.0, 1, {"val/success_sampled": 0.5, "loss/policy": 1.0})
    now = before.with_report(2.0, 2, {"val/reward_sampled": 0.4, "rollout/number": 4})
    assert now.values == {"loss/policy": 1.0, "val/reward_sampled": 0.4, "rollout/number": 4}
