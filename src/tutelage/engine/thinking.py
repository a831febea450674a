"""Sampling of a turn whose thought has a limit: a thought that reaches it is closed by the chat
template's own marker, and then comes the answer.

The closing tokens were not sampled, and their record says so. The limit is the run's
(`agent.max_thinking_tokens`), or what the request asked for (`Sampling.max_thinking_tokens`), the
smaller of both. At a limit of 0 the turn begins with an empty thought, all of it forced, which is
what templates write for a model that is not to think. `policy/thoughts.py` knows the markers;
`chat.py` asks.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from tutelage.engine.protocol import Engine, Request
from tutelage.engine.versions import cut, joined
from tutelage.policy.codec import Codec
from tutelage.policy.grammar import Grammar
from tutelage.seeds import SeedTree
from tutelage.types import Sampled, StopReason

SEED_BITS = 63


def sample(engine: Engine, codec: Codec, request: Request) -> Awaitable[Sampled]:
    """What the engine samples, with its thought closed at the limit where the turn has room for
    more than that."""
    sampling, prompt = request.sampling, request.prompt_ids
    room = min(sampling.max_tokens, engine.max_length - len(prompt))
    limits = (codec.thoughts.max_tokens, sampling.max_thinking_tokens)
    limit = min((n for n in limits if n is not None and codec.thoughts.known), default=room)
    if limit >= room:
        return engine.sample(request)
    return _limited(engine, codec, request, limit, room)


async def _limited(
    engine: Engine, codec: Codec, request: Request, limit: int, room: int
) -> Sampled:
    """What the engine samples, with a thought closed after `limit` of the `room` tokens; at 0 after
    an empty one, where the grammar and the room allow it and the prompt does not end with it."""
    sampling, thoughts, grammar = request.sampling, codec.thoughts, request.grammar
    if limit == 0:
        prompt = codec.decode(request.prompt_ids)
        opening = "" if thoughts.unclosed(prompt, "") else f"{thoughts.opening}\n"
        forced = tuple(codec.encode(opening + thoughts.close))
        rest_of = None if grammar is None else grammar.after(forced)
        fits = len(forced) < room and (grammar is None or rest_of is not None)
        if not fits or prompt.rstrip().endswith(thoughts.closing):
            return await engine.sample(request)
        first = Sampled((), (), (), StopReason.LENGTH, engine.version)
        seed = request.seed
    else:
        part = replace(sampling, max_tokens=limit)
        first = await engine.sample(replace(request, sampling=part))
        if first.stop_reason is not StopReason.LENGTH:
            return first
        first, forced, rest_of = _closed(codec, request, first)
        if len(first.token_ids) + len(forced) >= room:
            return first
        seed = SeedTree(request.seed).child("answer").value(SEED_BITS)
    if forced and request.on_logprobs is not None:
        request.on_logprobs(((0.0, ()),) * len(forced))
    if forced and request.on_token is not None:
        request.on_token(forced)
    known = first.token_ids + forced
    rest = await engine.sample(
        replace(
            request,
            prompt_ids=request.prompt_ids + known,
            sampling=replace(sampling, max_tokens=sampling.max_tokens - len(known)),
            seed=seed,
            grammar=rest_of,
        )
    )
    for n in range(len(rest.token_ids) if sampling.stop else 0):
        # A stop string that began in the first part ends the second.
        text = codec.decode(known + rest.token_ids[:n])
        if any(stop in text for stop in sampling.stop):
            rest = replace(_cut(rest, n), stop_reason=StopReason.STOP)
            break
    zeros, allowed = (0.0,) * len(forced), ()
    none = ((),) * (len(forced) if first.top or rest.top else 0)
    if forced or first.allowed:
        before, after = (s.allowed or (0,) * len(s.token_ids) for s in (first, rest))
        allowed = (*before, *(1,) * len(forced), *after)
    return Sampled(
        known + rest.token_ids,
        first.logprobs + zeros + rest.logprobs,
        first.raw_logprobs + zeros + rest.raw_logprobs,
        rest.stop_reason,
        min(first.policy_version, rest.policy_version),
        allowed,
        first.top + none + rest.top,
        joined(first, len(forced), rest),
    )


def _closed(
    codec: Codec, request: Request, first: Sampled
) -> tuple[Sampled, tuple[int, ...], Grammar | None]:
    """What to keep of a reply at its limit, what closes its thought, and the grammar of the rest. A
    last character of which only some bytes were sampled is not kept. A grammar without thoughts is
    followed, whatever the prompt opens."""
    ids, whole = first.token_ids, request.grammar
    if codec.thoughts.unclosed(codec.decode(request.prompt_ids), codec.decode(ids)):
        closing = tuple(codec.encode(codec.thoughts.close))
        for n in range(len(ids), max(0, len(ids) - 4), -1):
            rest = None if whole is None else whole.after(ids[:n] + closing)
            if whole is None and codec.decode(ids[:n]).endswith("\ufffd"):
                continue
            if whole is None or rest is not None:
                return _cut(first, n), closing, rest
        if whole is None:
            return first, closing, None
    return first, (), None if whole is None else whole.after(ids)


def _cut(reply: Sampled, n: int) -> Sampled:
    """The first tokens of a reply."""
    return replace(
        reply,
        token_ids=reply.token_ids[:n],
        logprobs=reply.logprobs[:n],
        raw_logprobs=reply.raw_logprobs[:n],
        allowed=reply.allowed[:n],
        top=reply.top[:n],
        versions=reply.versions and cut(reply, n),
    )
