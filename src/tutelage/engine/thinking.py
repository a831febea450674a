"""Sampling of a turn whose thought has a limit: a thought that reaches it is closed by the chat
template's own marker, and then comes the answer.

The closing tokens were not sampled, and their record says so. The limit is the run's
(`agent.max_thinking_tokens`), or what the request asked for (`Sampling.max_thinking_tokens`), the
smaller of both. At a limit of 0 the turn begins with an empty thought, all of it forced, which is
what templates write for a model that is not to think. `policy/thoughts.py` knows the markers;
`chat.py` asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
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
    if limit == 0:
        return _without_thought(engine, codec, request, room)
    return _closing(engine, codec, request, limit, room)


def _without_thought(
    engine: Engine, codec: Codec, request: Request, room: int
) -> Awaitable[Sampled]:
    """What the engine samples after an empty thought, where the grammar and the room allow one and
    the prompt does not end with it."""
    prompt, thoughts, whole = codec.decode(request.prompt_ids), codec.thoughts, request.grammar
    opening = "" if thoughts.unclosed(prompt, "") else f"{thoughts.opening}\n"
    empty = tuple(codec.encode(opening + thoughts.close))
    grammar = None if whole is None else whole.after(empty)
    fits = len(empty) < room and (whole is None or grammar is not None)
    if not fits or prompt.rstrip().endswith(thoughts.closing):
        return engine.sample(request)
    nothing = Sampled((), (), (), StopReason.LENGTH, engine.version)
    return _answered(engine, codec, request, nothing, empty, grammar, request.seed)


async def _closing(
    engine: Engine, codec: Codec, request: Request, limit: int, room: int
) -> Sampled:
    """What the engine samples, with a thought closed after `limit` of the `room` tokens."""
    part = replace(request.sampling, max_tokens=limit)
    first = await engine.sample(replace(request, sampling=part))
    if first.stop_reason is not StopReason.LENGTH:
        return first
    first, forced, grammar = _closed(codec, request, first)
    if len(first.token_ids) + len(forced) >= room:
        return first
    seed = SeedTree(request.seed).child("answer").value(SEED_BITS)
    return await _answered(engine, codec, request, first, forced, grammar, seed)


async def _answered(
    engine: Engine,
    codec: Codec,
    request: Request,
    first: Sampled,
    forced: tuple[int, ...],
    grammar: Grammar | None,
    seed: int,
) -> Sampled:
    """A reply that goes on after its first part and the tokens that are forced then."""
    sampling, known = request.sampling, first.token_ids + forced
    if forced and request.on_logprobs is not None:
        request.on_logprobs(((0.0, ()),) * len(forced))
    if forced and request.on_token is not None:
        request.on_token(forced)
    rest = await engine.sample(
        replace(
            request,
            prompt_ids=request.prompt_ids + known,
            sampling=replace(sampling, max_tokens=sampling.max_tokens - len(known)),
            seed=seed,
            grammar=grammar,
        )
    )
    return _joined(first, forced, _until(codec, sampling.stop, known, rest))


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


def _until(codec: Codec, stops: Sequence[str], known: tuple[int, ...], rest: Sampled) -> Sampled:
    """The second part of a reply, up to a stop string that began in the first."""
    for n in range(len(rest.token_ids) if stops else 0):
        text = codec.decode(known + rest.token_ids[:n])
        if any(stop in text for stop in stops):
            return replace(_cut(rest, n), stop_reason=StopReason.STOP)
    return rest


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


def _joined(first: Sampled, forced: tuple[int, ...], rest: Sampled) -> Sampled:
    """One reply of two parts, with forced tokens between them."""
    zeros, allowed = (0.0,) * len(forced), ()
    none = ((),) * (len(forced) if first.top or rest.top else 0)
    if forced or first.allowed:
        known, more = (s.allowed or (0,) * len(s.token_ids) for s in (first, rest))
        allowed = (*known, *(1,) * len(forced), *more)
    return Sampled(
        first.token_ids + forced + rest.token_ids,
        first.logprobs + zeros + rest.logprobs,
        first.raw_logprobs + zeros + rest.raw_logprobs,
        rest.stop_reason,
        min(first.policy_version, rest.policy_version),
        allowed,
        first.top + none + rest.top,
        joined(first, len(forced), rest),
    )
