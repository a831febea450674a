"""Real clients against the gateway: each API, streamed or not, with and without tools, four turns.

    python -m benchmarks.gateway.matrix [--litellm PYTHON] [--frameworks PYTHON] [--record FOLDER]
        [--upstream]

Each client is driven by a program of its own (`clients/`), in its own environment, and sends back
what it was answered as it is. A cell passes when the client raised nothing, understood each reply
as it is on record, handed all its turns back, and the conversation makes one training row.
`--record` writes what the clients sent; tests/gateway/test_client_bodies.py sends it again. Exit
status 1 when a cell fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gateway.conversation import handed_back, said, sampled, scripted, turns_of
from benchmarks.gateway.recording import RequestLog, save

from tutelage.engine.chat import ChatSession
from tutelage.gateway import Gateway
from tutelage.gateway.forward import Upstream
from tutelage.rollouts.rows import build_rows
from tutelage.types import Sampling

CLIENTS = Path(__file__).parent / "clients"
LITELLM_PREFIXES = ("openai/", "hosted_vllm/", "litellm_proxy/", "anthropic/", "lm_studio/")
ALL = ("chat", "responses", "messages")
FRAMEWORKS = {
    "agno": ("agno", ALL),
    "openai-agents": ("openai-agents", ALL[:2]),
    "agent-framework": ("agent-framework-core", ALL[:2]),
    "langgraph": ("langgraph", ALL[:2]),
    "pydantic-ai": ("pydantic-ai-slim", ALL),
    "smolagents": ("smolagents", ALL[:1]),
}
"""The package whose version is told, and the APIs that it speaks."""
APART = {"smolagents", "completions"}
"""Whose calls need not make one row: smolagents hands a call back as text, and a prompt that is a
text is encoded again."""
LIMIT = 48
"""Tokens that the policy may sample where the client names no limit."""


@dataclass
class MatrixCell:
    """One conversation, and what came of it."""

    client: str
    api: str
    stream: bool
    model: str
    """The script, of `conversation.py`; `policy` is a sampled one."""
    prefix: str = ""
    version: str = ""
    turns: int = 0
    rows: int = 0
    paths: list[str] = field(default_factory=list[str])
    """What was asked of the gateway, in order."""
    error: str | None = None

    @property
    def id(self) -> str:
        """Its name, which can stand in a URL."""
        words = [self.client, self.prefix, self.api, self.model, "stream" if self.stream else ""]
        return "-".join(w for w in words if w).replace("/", "").replace(", ", "-").replace(" ", "-")

    @property
    def tools(self) -> bool:
        """Whether the client is given tools."""
        return self.model in ("tools", "final answer")

    def line(self) -> list[str]:
        """Its line of the table."""
        asked = ", ".join(dict.fromkeys(p.removeprefix("/v1/") for p in self.paths))
        return [
            f"{self.client} {self.version}",
            f"{self.prefix} {self.api}".strip(),
            asked,
            "yes" if self.stream else "no",
            self.model,
            str(self.turns),
            str(self.rows),
            "pass" if self.error is None else f"FAIL {self.error}",
        ]


MODELS = ("text", "tools", "empty", "thoughts", "policy")
"""The columns of the table."""


def cells_of(program: str) -> Iterator[MatrixCell]:
    """The cells of one program."""
    for stream in (False, True):
        if program == "openai":
            for api in ("chat", "responses", "responses by id"):
                for model in ("text", "tools", "empty", "policy"):
                    yield MatrixCell("openai", api, stream, model)
            yield MatrixCell("openai", "completions", stream, "text")
        elif program == "anthropic":
            for model in ("text", "tools", "empty", "policy"):
                yield MatrixCell("anthropic", "messages", stream, model)
            yield MatrixCell("anthropic", "messages, thinking", stream, "thoughts")
            yield MatrixCell("anthropic", "tool runner", stream, "tools")
        elif program == "litellm":
            for prefix in LITELLM_PREFIXES:
                for api in ("completion", "responses", "messages"):
                    for model in ("text", "tools"):
                        yield MatrixCell("litellm", api, stream, model, prefix)
            for model in ("empty", "policy"):
                yield MatrixCell("litellm", "completion", stream, model, "openai/")
                yield MatrixCell("litellm", "messages", stream, model, "anthropic/")
            for api in ("completion", "messages, thinking"):
                yield MatrixCell("litellm", api, stream, "thoughts", "anthropic/")
        else:
            for name, (_, apis) in FRAMEWORKS.items():
                for api in apis:
                    tools = "final answer" if name == "smolagents" else "tools"
                    for model in ("text", tools):
                        yield MatrixCell(name, f"{name} {api}", stream, model)


def play(program: str, python: str, log: RequestLog, only: str, upstream: bool) -> list[MatrixCell]:
    """Run a program through its cells; with `upstream` before another gateway, which is asked
    neither to continue raw prompts nor to limit thoughts."""
    cells = [cell for cell in cells_of(program) if only in cell.id]
    if upstream:
        cells = [cell for cell in cells if cell.api != "completions" and cell.model != "thoughts"]
    served, behind = Gateway(), Gateway() if upstream else None
    served.app = log.served(served.app)
    with served as gateway, behind or nullcontext(), tempfile.TemporaryFile("w+") as noise:
        driver = subprocess.Popen(
            [python, str(CLIENTS / f"{program}_client.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
            env={**os.environ, "NO_PROXY": "127.0.0.1", "PYTHONPATH": ""},
        )
        assert driver.stdin is not None
        versions = _answer(driver, "versions ")
        try:
            for cell in cells:
                package = FRAMEWORKS.get(cell.client, (cell.client,))[0]
                cell.version = (versions or {}).get(package, "?")
                _play_cell(cell, gateway, driver, log, behind)
                print("  ".join(cell.line()), flush=True)
        finally:
            driver.stdin.close()
            driver.wait()
        noise.seek(0)
        if any(cell.error for cell in cells):
            sys.stderr.write("".join(noise.readlines()[-40:]))
    return cells


def _play_cell(
    cell: MatrixCell,
    gateway: Gateway,
    driver: subprocess.Popen[str],
    log: RequestLog,
    behind: Gateway | None,
) -> None:
    """One conversation."""
    chat = sampled(cell.id) if cell.model == "policy" else scripted(cell.model, cell.id)
    limits = Sampling(max_tokens=LIMIT * 100)
    attempt = far = (behind or gateway).open("matrix", cell.id, chat, sampling=limits)
    if behind is not None:
        client = Upstream(far.base_url, far.api_key, "far")
        attempt = gateway.open("matrix", cell.id, client, sampling=limits)
    if cell.model == "policy":
        far.sampling = attempt.sampling = Sampling(max_tokens=LIMIT)
    asked: dict[str, Any] = {
        "id": cell.id,
        "api": cell.api,
        "stream": cell.stream,
        "tools": cell.tools,
        "base_url": attempt.base_url,
        "api_key": attempt.api_key,
        "prefix": cell.prefix,
        "by_hand": cell.model == "policy",
    }
    assert driver.stdin is not None
    driver.stdin.write(json.dumps(asked) + "\n")
    driver.stdin.flush()
    told = _answer(driver, "cell ")
    attempt.close()
    far.close()
    cell.turns, cell.rows = len(chat.calls), len(build_rows(chat.calls))
    cell.paths = [request["path"] for request in log.of(cell.id)]
    cell.error = "the program ended" if told is None else told["error"] or _fault(cell, told, chat)


def _answer(driver: subprocess.Popen[str], head: str) -> Any:
    """The next line of a program that begins so; None where it has ended."""
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.startswith(head):
            return json.loads(line.removeprefix(head))
    return None


def _fault(cell: MatrixCell, told: dict[str, Any], chat: ChatSession) -> str | None:
    """What is wrong with a conversation that raised nothing."""
    if cell.turns != 4:
        return f"{cell.turns} calls on record in place of 4"
    understood = [(text, [tuple(call) for call in calls]) for text, calls in told["turns"]]
    recorded = [said(call.reply) for call in chat.calls]
    if cell.client in FRAMEWORKS:
        # Its own loop shows the last text, or all texts on the way as one; smolagents an argument.
        texts = [text for text, _ in understood]
        wanted = [text for text, calls in recorded if not calls]
        wanted = wanted or [recorded[-1][1][0][1]["answer"]]
        if texts != wanted and texts != ["".join(text for text, _ in recorded)]:
            return f"it understood {texts!r} for {wanted!r}"
    elif understood != recorded:
        at = next(i for i in range(4) if understood[i] != recorded[i])
        return f"turn {at + 1}: it understood {understood[at]!r} for {recorded[at]!r}"
    if {cell.client, cell.api} & APART:
        return None
    returned = [handed_back(turn) for turn in turns_of(chat.calls[-1].messages)]
    if returned != [handed_back(call.reply) for call in chat.calls[:-1]]:
        return f"it handed back {returned!r}"
    if cell.rows != 1 and cell.model != "policy":
        return f"{cell.rows} rows"
    return None


def table(cells: Sequence[MatrixCell]) -> str:
    """A line for each function of a client, as Markdown: for each script how many of its cells
    passed, not streamed and streamed, and how many training rows a conversation made."""
    lines: dict[tuple[str, ...], dict[str, list[MatrixCell]]] = {}
    for cell in cells:
        client, function, asked, *_ = cell.line()
        of_model = lines.setdefault((client, function, asked), {})
        of_model.setdefault("tools" if cell.tools else cell.model, []).append(cell)
    head = ["client", "function", "asked of us", *MODELS]
    out = [head, ["---"] * len(head)]
    for names, of_model in lines.items():
        out.append([*names, *(_passed(of_model.get(model, [])) for model in MODELS)])
    return "\n".join("| " + " | ".join(line) + " |" for line in out) + "\n"


def _passed(cells: Sequence[MatrixCell]) -> str:
    if not cells:
        return ""
    rows = "/".join(sorted({str(cell.rows) for cell in cells}))
    return f"{sum(cell.error is None for cell in cells)} of {len(cells)}, {rows}"


def main() -> None:
    """Play all programs that have an environment, print a line a cell."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--litellm", metavar="PYTHON", help="of an environment with litellm")
    parser.add_argument("--frameworks", metavar="PYTHON", help="of one with the frameworks")
    parser.add_argument("--record", metavar="FOLDER", type=Path, help="write what clients sent")
    parser.add_argument("--upstream", action="store_true", help="before another gateway")
    parser.add_argument("--only", default="", help="cells whose id has this text")
    parser.add_argument("--out", type=Path, help="write the table there, as Markdown")
    args = parser.parse_args()
    pythons = {"openai": sys.executable, "anthropic": sys.executable}
    pythons |= {"litellm": args.litellm, "frameworks": args.frameworks}
    found: list[MatrixCell] = []
    log = RequestLog()
    for program, python in pythons.items():
        if python is None:
            print(f"{program}: not played, since --{program} names no interpreter that has it")
        else:
            found += play(program, python, log, args.only, args.upstream)
    if args.record is not None:
        save(args.record, found, log)
    if args.out is not None:
        args.out.write_text(table(found))
    failed = sum(cell.error is not None for cell in found)
    print(f"{len(found)} cells, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
