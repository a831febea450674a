"""One request that was carried out: what was asked, the folder before and after, and the answer.

Graders are functions of a `Case` that give the fault in words, the empty text where all is right.
What they share is here: that nothing else has changed, and that the answer is no listing of
everything there is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from benchmarks.orchestration.grading.facts import lines_of
from benchmarks.orchestration.grading.state import FolderState, change_fault
from benchmarks.orchestration.kit import FolderContents
from benchmarks.orchestration.kit.contents import Person

_SHORTEST = 8
"""Characters of a line that is looked for in an answer: shorter ones stand there by chance."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a grader sees."""

    folder: FolderContents
    """As it was made: rows, pages and the day."""
    names: Mapping[str, str]
    before: FolderState
    after: FolderState
    answer: str
    sentence: str = ""

    @property
    def today(self) -> str:
        """The day that it is in the folder, as 2026-05-14."""
        return str(self.folder.today)

    def text(self, path: str) -> str:
        """The text of a file before."""
        return self.before.text(path) or ""


CaseGrader = Callable[[Case], str]


def only_answered(case: Case, allowed: Iterable[str] = (), person: Person | None = None) -> str:
    """The fault of a case that was to give an answer and to change nothing."""
    return change_fault(case.before, case.after) or listing_fault(case, allowed, person)


def listing_fault(case: Case, allowed: Iterable[str] = (), person: Person | None = None) -> str:
    """Why an answer is a listing: it has a line of a file or of a page, or the phone number or the
    birthday of a person, that stands neither in the texts `allowed` nor in the row of `person`."""
    if not case.answer.strip():
        return "there is no answer"
    texts = [content.decode("utf-8", "replace") for content in case.before.files.values()]
    lines = {line for text in (*texts, *case.folder.pages.values()) for line in lines_of(text)}
    secrets = {fact for row in case.folder.people for fact in (row.phone, row.birthday)}
    fine = "\n".join([*allowed, case.sentence, *(person or ())])
    answer = " ".join(case.answer.split())
    for line in sorted(lines | secrets):
        if len(line) >= _SHORTEST and line not in fine and line in answer:
            return f"the answer lists what was not asked for: {line!r}"
    return ""


def file_fault(case: Case, path: str, *texts: str) -> str:
    """Why a file does not hold one of these texts, whatever empty lines stand at its end."""
    found = case.after.text(path)
    if found is None:
        return f"there is no {path}"
    if found.rstrip() not in {text.rstrip() for text in texts}:
        return f"{path} holds something else than it should: {json.dumps(found)[:200]}"
    return ""


def gone_fault(case: Case, path: str) -> str:
    """Why a file is not gone."""
    return f"{path} is still there" if path in case.after.files else ""


def without_line(text: str, line: str) -> tuple[str, str]:
    """A text without a line, and with an empty line where it stood."""
    lines = text.split("\n")
    place = lines.index(line)
    return (
        "\n".join([*lines[:place], *lines[place + 1 :]]),
        "\n".join([*lines[:place], "", *lines[place + 1 :]]),
    )
