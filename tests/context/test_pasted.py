"""Blocks between a user's own words."""

import time

import pytest

from proxy.context.pasted import find_pasted

LOG = "\n".join(f"2024-05-01 10:00:{i:02} INFO worker-{i} took job {i * 7}" for i in range(30))
CODE = "```python\ndef read_shape(raw):\n    return raw\n```"


def list_pasted(text: str, shortest: int = 40) -> list[str]:
    return [text[start:stop] for start, stop in find_pasted(text, shortest)]


@pytest.mark.parametrize(
    "block",
    [
        CODE,
        "~~~~\nsome words\n```\nmore words, and others\n~~~~",
        "```\nsome words, and a great many of them\n`````",
        '<file path="a.py">\nplain words in a file, many of them\n</file>',
        "<log>one line of it, of words alone, as it were</log>",
        LOG,
        f"{LOG}\n\n{LOG}",
        'Traceback (most recent call last):\n  File "a.py", line 3, in main\n    raise ValueError(text)',
        "src/a.py:12: undefined name and\nsrc/b.py:14: undefined name or",
        "    from os import path and others\n\tthen = call_of_it(1, 2)",
        "{'a': [1, 2, 3], 'b': {'c': 4, 'd': 5}, 'e': -6}",
    ],
)
def test_a_block_is_found_between_words(block: str) -> None:
    assert list_pasted(f"Please look at this:\n{block}\nWhat is wrong?") == [block]
    assert list_pasted(block) == [block]
    assert list_pasted(block, len(block)) == [block]
    assert list_pasted(block, len(block) + 1) == []


@pytest.mark.parametrize(
    "words",
    [
        "Do not touch the tests, please; use `make`, and write to me when you are done with it.",
        "1. Never push to main, whatever it takes.\n2. Ask before you delete, even if you are sure.\n",
        "- one rule that is meant to stay\n    - and another, below it, that is meant to stay\n",
        "```\nan open fence, behind which the user goes on to write what they want",
        "<instructions>\nwords of the user in a wrapper of their own, which are rules\n</instructions>",
        "",
        "\n\n",
    ],
)
def test_words_are_no_block(words: str) -> None:
    assert list_pasted(words, 20) == []


def test_several_blocks_come_in_order_and_words_between_them_are_left() -> None:
    text = f"First\n{LOG}\nand then\n{CODE}\nand\n<file>\n{CODE}\n</file>\nbye"
    assert list_pasted(text) == [LOG, CODE, f"<file>\n{CODE}\n</file>"]


def test_a_fence_that_is_never_closed_hides_none_behind_it() -> None:
    text = f"```` and so on\nFirst:\n{CODE}\nthen ````\n<log>\n{CODE}\n<log>\n```\nthe end of it is open"
    assert list_pasted(text) == [CODE, CODE]


def test_many_openings_are_no_burden() -> None:
    began = time.thread_time()
    assert find_pasted("```python and some words\n<file> and some words\n~~~ and some words\n" * 20_000, 10) == []
    assert time.thread_time() - began < 5
