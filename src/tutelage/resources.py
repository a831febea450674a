"""Resources: the named objects that an agent receives and that an algorithm may change.

`LLM` names a model, `PromptTemplate` holds a text with placeholders, any other object is passed
unchanged. They are collected in `NamedResources`. Before an attempt begins, the runner passes the
agent copies whose `endpoint` and `api_key` lead to a session of that attempt
(`rollouts/models.py`). `Roles.of` decides which LLM is the policy, by rules that never make a judge
the policy by accident.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from tutelage.errors import ConfigError
from tutelage.types import Call, ChatClient, Constraint, Message, Sampling, ToolSpec

POLICY = "main"
"""Default name of the policy."""
SHIPPED = "shipped"
"""Name of the trained start model that is part of this package."""
MAIN_AGENT = "main"
"""Default name of the agent that calls a model."""
AGENT: ContextVar[str] = ContextVar("tutelage_agent", default=MAIN_AGENT)
"""Name of the agent whose code runs; `agents/session.py` sets it."""

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PLACEHOLDER = re.compile(rf"\{{\{{(?P<literal>{_NAME})\}}\}}|\{{(?P<name>{_NAME})\}}")
_SINGLE = re.compile(rf"\{{({_NAME})\}}")


@dataclass(frozen=True, slots=True)
class LLM:
    """A chat model available to an agent.

    `name` is a label (or the folder of a Hugging Face model to train). With an `endpoint` it is
    that OpenAI-compatible server. `trainable` marks the policy (with an endpoint it is sampled
    there, which needs token ids and log-probabilities, and trained here), `frozen` the policy
    before training, `tokenizer_only` its tokenizer alone. Sampling fields that are None use the
    run's values. Inside a rollout `endpoint`, `api_key` and `model` are always set.
    """

    name: str = ""
    endpoint: str | None = None
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    """The model name in requests; None uses `name`."""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    trainable: bool = False
    frozen: bool = False
    tokenizer_only: bool = False
    policy: str = POLICY
    """Name of the policy, if several are trained at once."""
    client: ChatClient | None = field(default=None, repr=False, compare=False)
    """Inside a rollout in this process, a client of the same model without HTTP; see `chat`."""

    def __post_init__(self) -> None:
        lines = [w for w in ("trainable", "frozen") if getattr(self, w)]
        lines += ["endpoint"] if self.endpoint is not None and self.client is None else []
        if "frozen" in lines and len(lines) > 1:
            raise ConfigError(f"LLM {self.name!r} sets {' and '.join(lines)}; remove one of them")

    def sampling(self, default: Sampling) -> Sampling:
        """Return `default`, updated with the sampling fields set on this resource."""
        names = ("temperature", "top_p", "max_tokens", "stop")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        return replace(default, **{k: v for k, v in own.items() if v not in (None, ())})

    async def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[ToolSpec] = (),
        agent: str | None = None,
        choices: Sequence[str] = (),
        **sampling: Any,
    ) -> Call:
        """Call the model without HTTP, in a rollout in this process; the reply is
        `call.reply.content`.

        `messages` is a question or OpenAI messages, `sampling` fields of `Sampling`, `agent` the
        name of the caller (by default that of `rollout.agent(...)`), `choices` the allowed replies,
        empty for any. The call is recorded like one over the endpoint. Raises `ConfigError` outside
        a rollout, `EngineError` as the engine.
        """
        if self.client is None:
            raise ConfigError(
                f"LLM {self.name!r} can only be called inside a rollout, in the same process; use "
                "its endpoint with any OpenAI client"
            )
        if isinstance(messages, str):
            messages = [Message("user", messages)]
        given = [m if isinstance(m, Message) else Message.from_dict(m) for m in messages]
        return await self.client.chat(
            given,
            tools=tools,
            sampling=replace(self.sampling(Sampling()), **sampling),
            agent=agent or AGENT.get(),
            constraint=Constraint(choices=tuple(choices)) if choices else None,
        )


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A text with `{placeholders}`, which a prompt optimiser may rewrite.

    Only `{name}` with an identifier is a placeholder, and `{{name}}` stands for the text `{name}`.
    Every other brace is literal text, so JSON in a prompt needs no escaping.
    """

    template: str
    version: int = 0

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Return the distinct names of the placeholders, in order."""
        items = (m.group("name") for m in _PLACEHOLDER.finditer(self.template))
        return tuple(dict.fromkeys(name for name in items if name is not None))

    def format(self, **values: Any) -> str:
        """Return the text with every placeholder replaced; replaced values are not scanned again.

        Raises `ConfigError` for a placeholder without a value. Additional values are ignored.
        """
        missing = [name for name in self.placeholders if name not in values]
        if missing:
            raise ConfigError(
                f"the prompt template needs {', '.join(map(repr, missing))}; call "
                f"format({', '.join(f'{m}=...' for m in missing)})"
            )

        def substitute(match: re.Match[str]) -> str:
            name = match.group("name")
            return f"{{{match.group('literal')}}}" if name is None else str(values[name])

        return _PLACEHOLDER.sub(substitute, self.template)

    @staticmethod
    def escape(text: str) -> str:
        """Return `text` escaped so that `format` returns it unchanged."""
        return _SINGLE.sub(r"{{\1}}", text)

    def __str__(self) -> str:
        return self.template


class NamedResources(Mapping[str, Any]):
    """Mapping of resources by name: `resources["main"]` or `resources.main`.

    Async context managers are entered once before the first rollout and closed after the last one;
    an agent receives the value that entering returned.
    """

    def __init__(self, resources: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Create a mapping of resources. Raises `ConfigError` for an invalid or reserved name."""
        values = {**(resources or {}), **named}
        for name in values:
            if not isinstance(cast("Any", name), str) or not name.isidentifier():
                raise ConfigError(f"resource name {name!r} must be an identifier, such as 'main'")
            if name in RESERVED:
                raise ConfigError(f"the resource name {name!r} is reserved for the agent's {name}")
        self._items: dict[str, Any] = values

    def __getitem__(self, name: str) -> Any:
        if name not in self._items:
            raise KeyError(f"no resource {name!r}; available: {', '.join(self) or 'none'}")
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name] if name != "_items" else {}
        except KeyError as missing:
            raise AttributeError(missing.args[0]) from None

    def replaced(self, changes: Mapping[str, Any]) -> NamedResources:
        """Return a copy with the values of `changes`."""
        made = NamedResources()
        made._items = {**self._items, **changes}
        return made

    async def entered(self, stack: AsyncExitStack) -> NamedResources:
        """Enter every async context manager on `stack`, in order, and return a copy with the
        results."""
        changes = {
            name: await stack.enter_async_context(value)
            for name, value in self._items.items()
            if hasattr(value, "__aenter__") and hasattr(value, "__aexit__")
        }
        return self.replaced(changes) if changes else self


RESERVED = ("task", "rollout", "resources")
"""Parameters of agents with a fixed meaning, which cannot be names of resources."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of a run's LLMs, by resource name."""

    policies: Mapping[str, str]
    """Policy by resource, for trained LLMs. A trained LLM that is also remote is sampled there."""
    frozen: tuple[str, ...]
    remote: Mapping[str, str]
    """Base URL by resource."""

    @property
    def main(self) -> str | None:
        """Return the resource name of the policy, or None if no LLM is trained."""
        return next(iter(self.policies), None)

    @classmethod
    def find(cls, resources: Mapping[str, Any], endpoints: Mapping[str, str] | None = None) -> Self:
        """Determine the roles of the LLMs in `resources`.

        `endpoints` has base URLs by resource name or by model name. The policy is the LLM marked
        `trainable`, else the only LLM that has no endpoint and is not frozen. Raises `ConfigError`
        if the policy or an endpoint is unclear.
        """
        named = ((name, value) for name, value in resources.items() if isinstance(value, LLM))
        llms = {name: llm for name, llm in named if not llm.tokenizer_only}
        known = dict(endpoints or {})
        remote = {
            name: url
            for name, llm in llms.items()
            if (url := llm.endpoint or known.get(name) or known.get(llm.name)) is not None
        }
        unknown = sorted({*known} - {*llms} - {llm.name for llm in llms.values()})
        if unknown:
            raise ConfigError(
                f"endpoints has the unknown LLM {unknown[0]!r}; use one of "
                f"{', '.join(map(repr, llms)) or 'none'}"
            )
        frozen = tuple(name for name, llm in llms.items() if llm.frozen)
        marked = [name for name, llm in llms.items() if llm.trainable]
        open_ones = [name for name in llms if name not in remote and name not in frozen]
        chosen = marked or (open_ones if len(open_ones) == 1 else [])
        unset = [name for name in open_ones if name not in chosen]
        if unset:
            names = ", ".join(map(repr, unset))
            which = "" if marked else "Mark the one to train with LLM(trainable=True). "
            raise ConfigError(
                f"no endpoint or policy is set for the LLM {names}. {which}Other LLMs need an "
                f"endpoint: LLM(endpoint=...) or Trainer(endpoints={{{unset[-1]!r}: URL}}), or "
                "frozen=True for the policy before training"
            )
        policies = {name: llms[name].policy for name in chosen}
        if frozen and not policies:
            raise ConfigError(f"LLM {frozen[0]!r} is frozen, but there is no policy")
        return cls(policies, frozen, remote)
