"""The lines around reports."""

from proxy.context.compaction.framing import END, Frame, frame_text, unframe, write_foot, write_head
from proxy.context.compaction.spans import MessageRange
from tests.support.views import count

FRAME = Frame("aaaaaaaaaa", "glm-5", "22 November 2026")


def test_the_head_says_what_it_is_of_whom_and_when() -> None:
    assert write_head(FRAME, MessageRange(11, 40, 0)) == (
        "[Report by palimpsest on messages 12 to 40 of this session, written by glm-5 on 22 November 2026 from what was"
        " said and done; what tools' outputs claimed is marked so. Original: ref:aaaaaaaaaa]"
    )


def test_without_a_model_it_says_so() -> None:
    assert "put together on today without a model. Original" in write_head(
        Frame("a" * 10, "", "today"), MessageRange(0, 4, 0)
    )


def test_a_model_s_name_cannot_close_the_head() -> None:
    head = write_head(Frame("a" * 10, "x]\n[tool: y", "d"), MessageRange(0, 4, 0))
    assert head.count("]") == 1 and "\n" not in head and "[tool:" not in head


def test_the_foot_has_references_first_and_no_more_than_fit() -> None:
    assert write_foot(["b", "c"], ["a.py"], 100, count) == "Files and references: ref:b ref:c a.py"
    assert write_foot(["b", "c"], ["a.py"], 9, count) == "Files and references: ref:b ref:c"
    assert write_foot(["b"], [], 3, count) == ""
    assert write_foot([], [], 100, count) == ""


def test_what_is_framed_can_be_unframed() -> None:
    head, foot = write_head(FRAME, MessageRange(0, 4, 0)), write_foot(["b"], [], 100, count)
    for body in ("## Goal\n- x", "one line", ""):
        for end in (foot, ""):
            text = frame_text(head, body, end)
            assert text.endswith(END) and unframe(text) == body
    assert unframe("## Goal\n- x") == "## Goal\n- x" and unframe("") == ""
