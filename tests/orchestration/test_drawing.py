"""Pictures of plans: notes and sums are in them, and whatever text is stays text."""

from __future__ import annotations

from xml.etree import ElementTree

from tutelage.orchestration.plan.dag import Node, Plan, to_mermaid
from tutelage.orchestration.plan.drawing import to_svg

PLAN = Plan("A & B", (Node("read"), Node("cut <b>", {"x": "<node-0>"}), Node("say", after=(0, 1))))
NOTES = {0: ("text: small", "0.3 s, 0.0001 USD"), 1: ("code: large", "1 s, 0.02 USD")}


def test_a_picture_holds_notes_and_sums_inside_itself() -> None:
    root = ElementTree.fromstring(to_svg(PLAN, NOTES, "0.0201 USD expected"))
    told = [element.text for element in root.iter() if element.tag.endswith("text")]
    for text in (*NOTES[0], *NOTES[1], "0.0201 USD expected", "1  cut <b>"):
        assert text in told
    wide, high = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter():
        if element.tag.endswith(("text", "rect")):
            assert 0 <= float(element.attrib["x"]) < wide
            assert 0 <= float(element.attrib["y"]) < high
    bare = ElementTree.fromstring(to_svg(PLAN))
    assert float(bare.attrib["height"]) < high


def test_mermaid_has_notes_as_lines_of_a_box() -> None:
    assert 'n0["read<br/>text: small<br/>0.3 s, 0.0001 USD"]' in to_mermaid(PLAN, NOTES)
    assert 'n1["cut #60;b#62;"]' in to_mermaid(PLAN)
