"""Agents that are programs of Node, with their defaults, against the gateway.

    npm install --prefix FOLDER @openai/codex @anthropic-ai/claude-code opencode-ai \\
        @qwen-code/qwen-code
    python -m benchmarks.gateway.programs FOLDER/node_modules/.bin [--record FOLDER] [--upstream]

Each is asked, without a person, to make a file; the model calls the program's own shell and then
says that it is done. It passes when the program ended well, the file is there, every request was
answered, and the conversation makes one training row (opencode asks for a title too, which makes
another). `--record` writes what they sent, long texts cut; tests/gateway/test_client_defaults.py
sends it again. Exit status 1 when one fails.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway.conversation import codec
from benchmarks.gateway.recording import RequestLog, differences

from tutelage.engine.chat import ChatSession
from tutelage.engine.protocol import Request
from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway
from tutelage.gateway.forward import Upstream
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine

ASKED, COMMAND = "Please make the file made.txt with 46 in it.", "echo 46 > made.txt"
CONTEXT, SHOWN = 1 << 18, 60
CODEX = '{name="policy",base_url="%s",env_key="OPENAI_API_KEY",wire_api="responses"}'


@dataclass(frozen=True)
class Program:
    """How an agent is run, and what it calls its shell; `{base}` is the base URL of OpenAI."""

    name: str
    command: tuple[str, ...]
    shell: tuple[str, str]
    """The name of the tool, and of the argument that is the command."""
    more: tuple[tuple[str, str], ...] = ()
    """Arguments that the tool needs beside it."""
    env: tuple[tuple[str, str], ...] = ()
    rows: int = 1


PROGRAMS = (
    Program(
        "codex",
        (
            *("codex", "exec", "--skip-git-repo-check", "-m", "policy"),
            "--dangerously-bypass-approvals-and-sandbox",
            *("-c", 'model_provider="policy"', "-c", f"model_providers.policy={CODEX % '{base}'}"),
            ASKED,
        ),
        ("exec_command", "cmd"),
    ),
    Program(
        "claude",
        ("claude", "-p", ASKED, "--model", "policy", "--allowedTools", "Bash"),
        ("Bash", "command"),
        (("description", "Write it"),),
        (("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),),
    ),
    Program(
        "opencode",
        ("opencode", "run", ASKED),
        ("bash", "command"),
        (("description", "Write it"),),
        (
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
            (
                "OPENCODE_CONFIG_CONTENT",
                '{{"model": "gateway/policy", "autoupdate": false, "provider": {{"gateway": {{'
                '"npm": "@ai-sdk/openai-compatible", "models": {{"policy": {{}}}}, '
                '"options": {{"baseURL": "{base}", "apiKey": "{key}"}}}}}}}}',
            ),
        ),
        rows=2,
    ),
    Program(
        "qwen",
        ("qwen", "--auth-type", "openai", "--yolo", "-p", ASKED),
        ("run_shell_command", "command"),
        (("description", "Write it"),),
        (("OPENAI_MODEL", "policy"), ("QWEN_TELEMETRY_ENABLED", "0")),
    ),
)


def scripted(program: Program) -> ChatSession:
    """The record of a conversation with a model that calls the program's shell once."""
    known, (tool, argument) = codec("qwen2.5"), program.shell
    call = (tool, json.dumps({argument: COMMAND, **dict(program.more)}))

    def reply(request: Request) -> str:
        prompt = known.tokenizer.decode(request.prompt_ids)
        if f'"{tool}"' not in prompt:
            return "A file is made"  # the title of the conversation
        if "<tool_response>" in prompt:
            return "The file is made."
        return ScriptedReply("I make it.", (call,)).text()

    engine = ScriptedEngine(known, reply, max_length=CONTEXT)
    return ChatSession(engine, known, seeds=SeedTree(0).child(program.name), name=program.name)


def play(program: Program, binaries: Path, upstream: bool) -> tuple[list[str], dict[str, Any]]:
    """Run one; returns its line of the table, and what it sent as a fixture."""
    log, chat = RequestLog(), scripted(program)
    served, behind = Gateway(), Gateway() if upstream else None
    served.app = log.served(served.app)
    with served as gateway, behind or nullcontext(), tempfile.TemporaryDirectory() as place:
        far = attempt = (behind or gateway).open("programs", program.name, chat)
        if behind is not None:
            client = Upstream(far.base_url, far.api_key, "far")
            attempt = gateway.open("programs", program.name, client)
        home, work = Path(place, "home"), Path(place, "work")
        home.mkdir()
        work.mkdir()
        known = {"base": attempt.base_url, "key": attempt.api_key}
        # Nothing of this environment: it may have keys and settings of the same programs.
        env = {"HOME": str(home), "PATH": f"{binaries}:/usr/bin:/bin", "TERM": "dumb"}
        env |= attempt.env() | {name: value.format(**known) for name, value in program.env}
        command = [w.replace("{base}", attempt.base_url) for w in program.command]
        version = subprocess.run(
            [str(binaries / command[0]), "--version"], env=env, capture_output=True, text=True
        ).stdout.split()
        done = subprocess.run(
            [str(binaries / command[0]), *command[1:]],
            env=env,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )
        made = work / "made.txt"
        written = made.read_text().strip() if made.exists() else ""
        attempt.close()
        far.close()
    requests = log.of(program.name)
    rows = len(build_rows(chat.calls))
    refused = [r for r in requests if r["status"] != 200]
    passed = not done.returncode and written == "46" and not refused and rows == program.rows
    if not passed:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
    number = next(word for word in version if re.fullmatch(r"[\d.]+", word))
    line = [
        f"{program.name} {number}",
        ", ".join(dict.fromkeys(r["path"] for r in requests)),
        f"{len(requests) - len(refused)} of {len(requests)}",
        str(rows),
        "pass" if passed else f"FAIL exit {done.returncode}, made {written!r}",
    ]
    sent = json.loads(json.dumps(requests).replace(place, "/place"))
    fixture = {"client": program.name, "version": number, "requests": _cut(sent)}
    return line, fixture


def _cut(value: Any) -> Any:
    """A value whose long texts are cut; those of equal length and beginning stay equal."""
    if isinstance(value, str):
        return value if len(value) <= SHOWN else f"{value[:SHOWN]}... ({len(value)})"
    if isinstance(value, list):
        return [_cut(each) for each in value]
    return {k: _cut(v) for k, v in value.items()} if isinstance(value, dict) else value


def main() -> None:
    """Play them all, print a line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--upstream", action="store_true")
    args = parser.parse_args()
    failed = False
    for program in PROGRAMS:
        if args.only not in program.name:
            continue
        line, fixture = play(program, args.binaries.absolute(), args.upstream)
        print("| " + " | ".join(line) + " |", flush=True)
        failed |= line[-1] != "pass"
        if args.record is not None:
            lines = [json.dumps(r, ensure_ascii=False) for r in differences(fixture["requests"])]
            head = json.dumps({k: v for k, v in fixture.items() if k != "requests"})[:-1]
            text = head + ', "requests": [\n' + ",\n".join(lines) + "\n]}\n"
            args.record.mkdir(parents=True, exist_ok=True)
            (args.record / f"{program.name}.json").write_text(text, encoding="utf-8")
    sys.exit(failed)


if __name__ == "__main__":
    main()
