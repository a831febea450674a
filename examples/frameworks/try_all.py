"""Play all frameworks with scripted replies, and print what was recorded.

    python try_all.py                 # every framework that is installed here
    python try_all.py agno openai

One line a framework, API and way of delivery: calls and rows of a rollout, prompt tokens of its
first and last call, and where there is more than one row, what kept the calls apart. It checks that
every call has its token ids and belongs to the rollout whose question it asks, and fails where not.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from cold_start import with_template
from gather import FRAMEWORKS, Framework, calculations, gold, play

from tutelage.policy.codec import Codec
from tutelage.policy.tokenizer import train_tokenizer
from tutelage.rollouts.rows import build_rows
from tutelage.testing import tiny_policy
from tutelage.types import Call, Message, Rollout

COLUMNS = ("framework", "api", "stream", "calls", "prompt tokens", "rows", "merged by")


def check(rollouts: Sequence[Rollout]) -> None:
    """Every call has its tokens, and belongs to the rollout whose question it asks. Raises
    `AssertionError`."""
    seen: set[str] = set()
    for rollout in rollouts:
        assert rollout.last.failure is None, rollout.last.failure
        assert rollout.reward is not None
        assert rollout.reward.value == 1.0, rollout.last.answer
        question = rollout.task.fields["question"]
        for call in rollout.last.calls:
            assert call.id not in seen
            seen.add(call.id)
            assert call.prompt_ids
            assert call.sampled.token_ids
            assert len(call.sampled.logprobs) == len(call.sampled.token_ids)
            asked = "\n".join(m.content or "" for m in call.messages)
            others = {r.task.fields["question"] for r in rollouts} - {question}
            assert question in asked
            assert not any(other in asked for other in others)
        trained = sum(row.n_trained for row in build_rows(rollout.last.calls))
        assert trained == sum(len(c.sampled.token_ids) for c in rollout.last.calls)


def reason(calls: Sequence[Call]) -> str:
    """How the last call continues the one before, or what keeps it from doing so."""
    first, last = calls[-2], calls[-1]
    if last.prompt_ids[: len(first.prompt_ids)] != first.prompt_ids and _system(first) != _system(
        last
    ):
        return "apart: the system message changed"
    if len(build_rows(calls)) > 1:
        turns = [m for m in last.messages if m.role == "assistant"]
        if any(t.tool_calls for t in turns):
            return "apart: the history is not the one that was recorded"
        return "apart: the call comes back as a text"
    turn = next(m for m in last.messages if m.role == "assistant")
    return f"call id; {_change(first.reply, turn)}"


def _system(call: Call) -> str | None:
    return next((m.content for m in call.messages if m.role == "system"), None)


def _change(said: Message, told: Message) -> str:
    """How a framework hands an assistant turn back, beside what was said."""
    arguments = [c.arguments for c in said.tool_calls] != [c.arguments for c in told.tool_calls]
    content = (said.content or "") != (told.content or "")
    words = [
        w for w, yes in (("arguments dumped again", arguments), ("content changed", content)) if yes
    ]
    return ", ".join(words) or "turn unchanged"


async def lines(framework: Framework, codec: Codec, n: int) -> list[tuple[str, ...]]:
    """The lines of one framework."""
    tasks = calculations("val", n)
    out: list[tuple[str, ...]] = []
    for api in framework.apis:
        for stream in (False, True):
            rollouts = await play(framework, tasks, codec, gold(framework), api=api, stream=stream)
            check(rollouts)
            calls = rollouts[0].last.calls
            rows = {len(build_rows(r.last.calls)) for r in rollouts}
            tokens = f"{len(calls[0].prompt_ids)}, {len(calls[-1].prompt_ids)}"
            shown = "/".join(map(str, sorted(rows)))
            way = "yes" if stream else "no"
            out.append((framework.name, api, way, str(len(calls)), tokens, shown, reason(calls)))
    return out


def codec_for(texts: Sequence[str]) -> Codec:
    """A tokenizer of 512 tokens trained on `texts`, with the template that writes tools out."""
    policy = with_template(tiny_policy(max_positions=16384))
    if not texts:
        return policy.codec
    trained = train_tokenizer(texts, max_length=16384)
    trained.chat_template = policy.codec.tokenizer.chat_template
    return Codec(trained)


async def table(names: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All lines, with one tokenizer that was trained on what all of them send."""
    texts: list[str] = []
    probe = codec_for([])
    for name in names:
        framework = FRAMEWORKS[name]
        (seen,) = await play(
            framework, calculations("train", 1), probe, gold(framework), max_length=16384
        )
        texts += [probe.decode(seen.last.calls[-1].prompt_ids)]
    codec = codec_for(texts)
    return [line for name in names for line in await lines(FRAMEWORKS[name], codec, n)]


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="FRAMEWORK")
    parser.add_argument("--tasks", type=int, default=8, help="rollouts a line, all at once")
    args = parser.parse_args()
    wanted = args.names or [name for name, f in FRAMEWORKS.items() if f.installed()]
    found = asyncio.run(table(wanted, args.tasks))
    for cells in (COLUMNS, tuple("---" for _ in COLUMNS), *found):
        print("| " + " | ".join(cells) + " |")
    missing = [name for name, f in FRAMEWORKS.items() if not f.installed()]
    if missing and not args.names:
        print(f"\nnot installed here: {', '.join(missing)}")


if __name__ == "__main__":
    main()
