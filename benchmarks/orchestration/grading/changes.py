"""Graders of the requests that change the folder: what must be there, gone, or as it was.

An answer beside the change counts where the request asks for one. Each docstring says what would
be taken for right although it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

from benchmarks.orchestration.grading.case import (
    Case,
    CaseGrader,
    file_fault,
    gone_fault,
    listing_fault,
    without_line,
)
from benchmarks.orchestration.grading.facts import WEEKDAYS, says, says_file, weekdays_in
from benchmarks.orchestration.grading.state import change_fault
from benchmarks.orchestration.kit.contents import CALENDAR
from benchmarks.orchestration.kit.text_tools import sort_lines


def _moved(case: Case, moves: Mapping[str, str]) -> str:
    """Why files do not lie where they were to be moved to."""
    for old, new in moves.items():
        if new not in case.after.files:
            return f"there is no {new}"
        if fault := gone_fault(case, old):
            return fault
        if case.after.files[new] != case.before.files[old]:
            return f"{new} does not hold what {old} held"
    return change_fault(case.before, case.after, [*moves, *moves.values()])


def r03(case: Case) -> str:
    """The photo lies among the invoices. Photos are empty, so that a new empty file in its place
    with the photo deleted looks the same, and is."""
    photo = case.names["photo"]
    return _moved(case, {f"photos/{photo}": f"invoices/{photo}"})


def r06(case: Case) -> str:
    """The invoice is gone and nothing else. Moving it elsewhere would be a new file."""
    path = f"invoices/{case.names['invoice']}"
    return gone_fault(case, path) or change_fault(case.before, case.after, [path])


def r09(case: Case) -> str:
    """The note's lines are sorted. It was not sorted before, so that nothing done is wrong; the
    sorted lines written by heart instead of by the tool are right."""
    path = f"notes/{case.names['note']}"
    wanted = sort_lines(case.text(path))
    return file_fault(case, path, wanted) or change_fault(case.before, case.after, [path])


def r11(case: Case) -> str:
    """Exactly one row more, with these four values. A row that was inserted and one that was
    removed at the same time are seen, since the old rows must be the same in their order."""
    names = case.names
    wanted = (names["person"], names["item"], float(names["amount"]), case.today)
    before, after = case.before.tables["orders"], case.after.tables.get("orders", ())
    if after[: len(before)] != before or len(after) != len(before) + 1:
        return f"orders has {len(after)} rows, and should have the {len(before)} old and a new one"
    if after[-1] != wanted:
        return f"the new row is {after[-1]!r}, and should be {wanted!r}"
    for name, rows in case.before.tables.items():
        if name != "orders" and case.after.tables.get(name) != rows:
            return f"the table {name or 'list'} has changed"
    return change_fault(case.before, case.after, tables=False)


def r13(case: Case) -> str:
    """The line is off the note. An empty line where it stood is right; one elsewhere is not."""
    path = f"notes/{case.names['note']}"
    wanted = without_line(case.text(path), case.names["line"])
    return file_fault(case, path, *wanted) or change_fault(case.before, case.after, [path])


def r17(case: Case) -> str:
    """The log has a copy with the same text. Moving it would leave the log missing."""
    path = "logs/server-before.log"
    wanted = case.text("logs/server.log")
    return file_fault(case, path, wanted) or change_fault(case.before, case.after, [path])


def r19(case: Case) -> str:
    """The new note holds the names of all who live in the city and of nobody else, however it is
    laid out. Words beside the names are not judged: a note about somebody's absence by a name that
    is none of people would pass."""
    path = "notes/visit.txt"
    text = case.after.text(path)
    if text is None:
        return f"there is no {path}"
    wanted = {row.name for row in case.folder.people if row.city == case.names["city"]}
    for name in sorted({row.name for row in case.folder.people}):
        if says(text, name) != (name in wanted):
            return f"{path} {'lacks' if name in wanted else 'has'} {name}"
    return change_fault(case.before, case.after, [path])


def r22(case: Case) -> str:
    """The line's date is a week later, and the answer gives its day of the week. Whoever changes
    nothing is wrong whatever the answer; a guessed day is right once in seven times, and an answer
    with several days is not."""
    old = case.names["date"]
    new = date.fromisoformat(old) + timedelta(days=7)
    wanted = case.text(CALENDAR).replace(old, str(new))
    day = WEEKDAYS[new.weekday()]
    named = weekdays_in(case.answer)
    return (
        file_fault(case, CALENDAR, wanted)
        or change_fault(case.before, case.after, [CALENDAR])
        or listing_fault(case, [case.text(CALENDAR), wanted])
        or ("" if named == {day} else f"the answer gives {sorted(named)}, and not {day} alone")
    )


def r23(case: Case) -> str:
    """The headlines stand in a new note of today's name. Headlines in another order are wrong."""
    path = f"notes/news-{case.today}.txt"
    wanted = case.folder.pages["/news"]
    return file_fault(case, path, wanted) or change_fault(case.before, case.after, [path])


def r26(case: Case) -> str:
    """The corrected text lies under the new name and nothing under the old one. In which order it
    was corrected and moved is not judged."""
    name = case.names["invoice"]
    old, new = f"invoices/{name}", f"invoices/checked-{name}"
    wanted = case.text(old).replace(case.names["item"], "staplers")
    return (
        file_fault(case, new, wanted)
        or gone_fault(case, old)
        or change_fault(case.before, case.after, [old, new])
    )


def r27(case: Case) -> str:
    """The word has become the person's phone number; no other number will do."""
    path = f"notes/{case.names['note']}"
    (phone,) = {row.phone for row in case.folder.people if row.name == case.names["person"]}
    wanted = case.text(path).replace(case.names["word"], phone)
    return file_fault(case, path, wanted) or change_fault(case.before, case.after, [path])


def r29(case: Case) -> str:
    """The three photos have their names, and the answer names all photos that there now are. The
    old names may be told beside them; files of other folders may not, so that a listing of the
    whole folder is wrong."""
    names = case.names
    new = {key: f"party-{k}.{names[f'ext_{key}']}" for k, key in enumerate("abc", 1)}
    fault = _moved(case, {f"photos/{names[f'photo_{key}']}": f"photos/{new[key]}" for key in new})
    if fault:
        return fault
    for path in sorted(case.after.files):
        folder, _, name = path.rpartition("/")
        if says_file(case.answer, name) != (folder == "photos"):
            return f"the answer {'lacks' if folder == 'photos' else 'names'} {path}"
    return ""


def r30(case: Case) -> str:
    """The line is off the calendar, and its old text is kept beside it. A copy made after the line
    was taken off is wrong."""
    names, path, copy = case.names, CALENDAR, "calendar-old.txt"
    old = case.text(path)
    wanted = without_line(old, f"{names['date']} {names['time']} {names['event']}")
    return (
        file_fault(case, copy, old)
        or file_fault(case, path, *wanted)
        or change_fault(case.before, case.after, [path, copy])
    )


GRADERS: Mapping[str, CaseGrader] = {
    grader.__name__: grader
    for grader in (r03, r06, r09, r11, r13, r17, r19, r22, r23, r26, r27, r29, r30)
}
"""By the id of the request."""
