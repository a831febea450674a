"""Sample replies with a limit on thinking tokens, at which the thought is closed.

It is closed by the chat template's own marker. The closing tokens are not sampled, and the record
marks them. The limit is the run's (`agent.max_thinking_tokens`) or the request's
(`Sampling.max_thinking_tokens`), whichever is smaller. At a limit of 0 the turn begins with an
empty thought, all of it forced, as templates write it for a model that should not think.
`policy/thoughts.py` knows the markers; `chat.py` calls this.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from tutelage.engine.protocol import Engine, Request
from tutelage.engine.versions import join_spans, truncate_spans
from tutelage.policy.codec import Codec
from tutelage.policy.grammar import Grammar
from tutelage.seeds import SeedTree
from tutelage.types import Sampled, StopReason

SEED_BITS = 63


def sample(engine: Engine, codec: Codec, request: Request) -> Awaitable[Sampled]:
    """Sample a reply, and limit its thinking tokens if a limit below its maximum length is set."""
    sampling, prompt = request.sampling, request.prompt_ids
    room = min(sampling.max_tokens, engine.max_length - len(prompt))
    limits = (codec.thoughts.max_tokens, sampling.max_thinking_tokens)
    limit = min((n for n in limits if n is not None and codec.thoughts.known), default=room)
    if limit >= room:
        return engine.sample(request)
    return _sample_limited(engine, codec, request, limit, room)


async def _sample_limited(
    engine: Engine, codec: Codec, request: Request, limit: int, room: int
) -> Sampled:
    """Sample a reply of at most `room` tokens whose thought is closed after `limit` tokens.

    At a limit of 0 the reply begins with an empty thought, unless the grammar or the room forbids
    it or the prompt ends with one.
    """
    sampling, thoughts, grammar = request.sampling, codec.thoughts, request.grammar
    if limit == 0:
        prompt = codec.decode(request.prompt_ids)
        opening = "" if thoughts.is_open(prompt, "") else f"{thoughts.opening}\n"
        forced = tuple(codec.encode(opening + thoughts.closing_text))
        after = None if grammar is None else grammar.continuation(forced)
        fits = len(forced) < room and (grammar is None or after is not None)
        if not fits or prompt.rstrip().endswith(thoughts.closing):
            return await engine.sample(request)
        first = Sampled((), (), (), StopReason.LENGTH, engine.version)
        seed = request.seed
    else:
        part = replace(sampling, max_tokens=limit)
        first = await engine.sample(replace(request, sampling=part))
        if first.stop_reason is not StopReason.LENGTH:
            return first
        first, forced, after = _close_thought(codec, request, first)
        if len(first.token_ids) + len(forced) >= room:
            return first
        seed = SeedTree(request.seed).child("answer").value(SEED_BITS)
    if forced and request.on_token is not None:
        request.on_token(forced)
    prefix = first.token_ids + forced
    rest = await engine.sample(
        replace(
            request,
            prompt_ids=request.prompt_ids + prefix,
            sampling=replace(sampling, max_tokens=sampling.max_tokens - len(prefix)),
            seed=seed,
            grammar=after,
        )
    )
    for n in range(len(rest.token_ids) if sampling.stop else 0):
        # A stop string that began in the first part ends the second.
        text = codec.decode(prefix + rest.token_ids[:n])
        if any(stop in text for stop in sampling.stop):
            rest = replace(_truncate(rest, n), stop_reason=StopReason.STOP)
            break
    zeros, allowed = (0.0,) * len(forced), ()
    no_top = ((),) * (len(forced) if first.top or rest.top else 0)
    if forced or first.allowed:
        before, behind = (s.allowed or (0,) * len(s.token_ids) for s in (first, rest))
        allowed = (*before, *(1,) * len(forced), *behind)
    return Sampled(
        prefix + rest.token_ids,
        first.logprobs + zeros + rest.logprobs,
        first.raw_logprobs + zeros + rest.raw_logprobs,
        rest.stop_reason,
        min(first.policy_version, rest.policy_version),
        allowed,
        first.top + no_top + rest.top,
        join_spans(first, len(forced), rest),
    )


def _close_thought(
    codec: Codec, request: Request, first: Sampled
) -> tuple[Sampled, tuple[int, ...], Grammar | None]:
    """Return a reply truncated at its thinking limit, the tokens that close the thought, and the
    grammar of the rest.

    A last character of which only some bytes were sampled is dropped. A grammar without thoughts is
    followed, whatever the prompt opens.
    """
    ids, grammar = first.token_ids, request.grammar
    if codec.thoughts.is_open(codec.decode(request.prompt_ids), codec.decode(ids)):
        closing = tuple(codec.encode(codec.thoughts.closing_text))
        for n in range(len(ids), max(0, len(ids) - 4), -1):
            rest = None if grammar is None else grammar.continuation(ids[:n] + closing)
            if grammar is None and codec.decode(ids[:n]).endswith("\ufffd"):
                continue
            if grammar is None or rest is not None:
                return _truncate(first, n), closing, rest
        if grammar is None:
            return first, closing, None
    return first, (), None if grammar is None else grammar.continuation(ids)


def _truncate(reply: Sampled, n: int) -> Sampled:
    """Truncate a sampled reply to its first `n` tokens."""
    return replace(
        reply,
        token_ids=reply.token_ids[:n],
        logprobs=reply.logprobs[:n],
        raw_logprobs=reply.raw_logprobs[:n],
        allowed=reply.allowed[:n],
        top=reply.top[:n],
        versions=reply.versions and truncate_spans(reply, n),
    )
