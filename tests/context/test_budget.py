import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.context.budget import (
    AUTO_CEILING,
    LEAST_TRIGGER,
    LONGEST_RUN,
    Budget,
    BudgetPolicy,
    ModelPolicy,
    TokenRatio,
    bound_tokens,
    choose_ceiling,
    compute_output_reserve,
    cut_stretches,
    estimate_tokens,
    find_model_policy,
    guess_ratio,
    has_reference,
    has_token_bound,
    is_below_soft_mark,
    is_surely_below_soft_mark,
    lower_output,
    make_budget,
)
from proxy.context.model_catalog import identify_family
from proxy.model.card import UNPRICED, Prices, Rates, Tier

POLICY = BudgetPolicy()
BASE, DEAR = Rates(1.0, 5.0, 0.1, 1.25), Rates(2.0, 7.5, 0.2, 2.5)


def of_ceiling(ceiling: int) -> Budget:
    return make_budget(100_000_000, 64_000, 1000, BudgetPolicy(ceiling_tokens=ceiling))


@pytest.mark.parametrize(
    ("window", "most", "asked", "output"),
    [
        (200_000, 64_000, 32_000, 32_000),  # as asked
        (200_000, 64_000, None, 8192),
        (200_000, 4096, None, 4096),
        (16_000, 64_000, None, 4000),  # a quarter of the window
        (None, None, None, 8192),
        (None, None, 100, 100),
    ],
)
def test_room_for_the_answer_is_what_was_asked_for_or_the_least_known(
    window: int | None, most: int | None, asked: int | None, output: int
) -> None:
    assert compute_output_reserve(window, most, asked, POLICY) == output


@pytest.mark.parametrize(
    ("window", "usable"),
    [
        (1_000_000, 124_160),  # the automatic ceiling less 3 %
        (200_000, 124_160),
        (150_000, 119_366),  # 150,000 - 8192 - 18,750 = 123,058, below the ceiling
        (128_000, 100_693),  # 128,000 - 8192 - 16,000 = 103,808
        (8192, 4966),  # 8192 - 2048 - 1024 = 5120
        (None, 124_160),
    ],
)
def test_usable_is_what_window_and_ceiling_leave(window: int | None, usable: int) -> None:
    assert make_budget(window, None, None, POLICY).usable == usable


def price(*tiers: Tier, base: Rates = BASE) -> Prices:
    return Prices(base, tiers)


@pytest.mark.parametrize(
    ("prices", "ceiling"),
    [
        (UNPRICED, AUTO_CEILING),  # no source states them
        (price(), AUTO_CEILING),
        (price(Tier(100_000, DEAR)), 100_000),
        (price(Tier(100_000, DEAR), Tier(200_000, DEAR)), 100_000),
        (price(Tier(272_000, DEAR)), AUTO_CEILING),  # beyond it
        (price(Tier(90_000, Rates(1.0, 5.0, 0.2, 1.0)), Tier(100_000, DEAR)), 90_000),  # only reads are dearer
        (price(Tier(90_000, Rates(1.0, 7.5, 0.1, 1.0)), Tier(100_000, DEAR)), 100_000),  # only the response is dearer
        (price(base=Rates(1.0, 5.0, 0.5, 1.0)), AUTO_CEILING),  # whatever reads cost
        (price(base=Rates(1.0, 5.0, 0.025, 1.25)), AUTO_CEILING),
        (price(base=Rates(1.0, 5.0, 0.0, 1.0)), AUTO_CEILING),
    ],
)
def test_an_automatic_ceiling_is_the_same_for_all_models_but_below_long_context_prices(
    prices: Prices, ceiling: int
) -> None:
    assert choose_ceiling(prices) == ceiling
    assert make_budget(1_000_000, None, None, POLICY, prices=prices).usable == ceiling * 97 // 100
    assert make_budget(None, None, None, POLICY, prices=prices).usable == ceiling * 97 // 100


def test_a_window_below_the_automatic_ceiling_counts() -> None:
    budget = make_budget(64_000, None, None, POLICY, prices=price(Tier(100_000, DEAR)))
    assert budget.usable == (64_000 - 8192 - 8000) * 97 // 100


def test_a_ceiling_that_is_set_holds_above_long_context_prices() -> None:
    policy = BudgetPolicy(ceiling_tokens=300_000)
    assert make_budget(1_000_000, None, None, policy, prices=price(Tier(100_000, DEAR))).usable == 291_000


def test_a_model_whose_answer_may_fill_its_window_still_has_a_budget() -> None:
    assert make_budget(32_768, 32_768, None, POLICY).usable == (32_768 - 8192 - 4096) * 97 // 100


def test_a_request_whose_answer_fills_the_window_has_no_budget_and_no_pressure() -> None:
    budget = make_budget(32_768, 32_768, 32_768, POLICY)
    assert budget.usable == 0
    assert budget.compute_pressure(100_000) == "none"


@pytest.mark.parametrize(
    ("ceiling", "soft", "low"), [(16_000, 9312, 4656), (32_000, 18_624, 9312), (64_000, 24_832, 12_416)]
)
def test_from_64k_on_the_soft_and_low_marks_are_lower(ceiling: int, soft: int, low: int) -> None:
    budget = of_ceiling(ceiling)
    assert budget.usable == budget.high == ceiling * 97 // 100
    assert (budget.soft, budget.compute_low_mark(0)) == (soft, low)


def test_fractions_that_are_set_hold_at_any_size() -> None:
    policy = BudgetPolicy(ceiling_tokens=100_000, soft_fraction=0.5, low_fraction=0.25)
    budget = make_budget(None, None, None, policy)
    assert (budget.soft, budget.compute_low_mark(0)) == (48_500, 24_250)


def test_the_low_mark_leaves_room_beside_what_is_protected_but_stays_below_the_high_mark() -> None:
    budget = of_ceiling(32_000)
    assert budget.usable == 31_040
    assert budget.compute_low_mark(10_000) == 10_000 + 6208
    assert budget.compute_low_mark(30_000) == 26_384


def test_pressure_grows_at_the_marks() -> None:
    budget = of_ceiling(32_000)
    marks = (budget.soft - 1, budget.soft, budget.high - 1, budget.high)
    assert [budget.compute_pressure(tokens) for tokens in marks] == ["none", "soft", "soft", "hard"]


def test_a_ceiling_is_out_of_reach_where_more_than_70_percent_are_protected() -> None:
    budget = of_ceiling(32_000)
    assert [budget.is_ceiling_unreachable(protected) for protected in (21_727, 21_729)] == [False, True]


def test_a_head_waits_near_the_window_and_where_no_window_is_known() -> None:
    known, unknown = make_budget(100_000, None, None, POLICY), make_budget(None, None, None, POLICY)
    assert [known.is_near_window(tokens) for tokens in (74_999, 75_000)] == [False, True]
    assert unknown.is_near_window(1)


@pytest.mark.parametrize(
    ("asked", "sent", "lowered"),
    [
        (32_000, 90_000, 10_000),
        (32_000, 50_000, 32_000),  # it fits as it is
        (32_000, 92_000, 8000),  # a quarter
        (32_000, 92_001, None),
        (8000, 95_904, 4096),
        (8000, 95_905, None),
        (1000, 99_000, 1000),
        (1000, 99_001, None),  # no less than what was asked for, where that is little
    ],
)
def test_an_answer_is_shortened_to_a_quarter_at_most(asked: int, sent: int, lowered: int | None) -> None:
    assert lower_output(asked, 100_000, sent) == lowered


def test_bytes_bound_tokens() -> None:
    assert bound_tokens(b"x" * 1000) == 2024


@pytest.mark.parametrize(
    "member",
    [
        '"type":"image_url"',
        '"type":"input_file"',
        '"type":"document"',
        '"previous_response_id":"r"',
        '"conversation":"c"',
        '"type":"item_reference"',
        '"cached_content":"c"',
        '"type":"\\u0069mage_url"',
        '"previous\\u005fresponse_id":"r"',
    ],
)
def test_what_stands_elsewhere_has_no_bound(member: str) -> None:
    assert bound_tokens(b"{%s}" % member.encode()) is None
    assert not is_surely_below_soft_mark(of_ceiling(64_000), b"{%s}" % member.encode())


@pytest.mark.parametrize(
    "value",
    [
        "é\n\x01 <b>ünïcödé</b>",
        'read the "file", look at the "image"',
        {"arguments": '{"file":"a.png"}'},
        {"type": "function", "name": "read_file", "path": "image_url.py"},
        {"previous_response_id": None, "prompt": None},
    ],
)
def test_text_about_files_and_escapes_that_spell_no_letter_leave_the_bound(value: object) -> None:
    assert bound_tokens(json.dumps(value).encode()) is not None
    assert bound_tokens(json.dumps(value).replace("<", "\\u003c").encode()) is not None


def test_nothing_is_counted_while_bytes_stay_below_the_soft_mark() -> None:
    budget = of_ceiling(32_000)
    room = budget.soft - 1024
    assert [is_surely_below_soft_mark(budget, b"x" * size) for size in (room - 1, room)] == [True, False]
    assert not is_surely_below_soft_mark(budget, b"x" * (room - 1), counted=1)


@given(
    st.none() | st.integers(1, 2_000_000), st.none() | st.integers(1, 200_000), st.none() | st.integers(1, 2_000_000)
)
def test_marks_are_in_order_and_inside_the_window(window: int | None, most: int | None, asked: int | None) -> None:
    budget = make_budget(window, most, asked, POLICY)
    assert 0 <= budget.compute_low_mark(0) <= budget.soft <= budget.high <= 194_000
    assert window is None or budget.high <= max(0, window - budget.output)


def test_a_budget_may_be_told_in_other_units() -> None:
    budget = make_budget(200_000, None, 1_000, BudgetPolicy(ceiling_tokens=100_000))
    double = budget.scale(2.0)
    assert (double.window, double.output, double.usable, double.soft) == (100_000, 500, 48_500, 19_400)
    assert double.compute_low_mark(0) == budget.compute_low_mark(0) // 2
    assert budget.scale(1.0) is budget
    assert make_budget(None, None, None, BudgetPolicy()).scale(1.5).window is None


def test_a_budget_may_be_tightened_and_its_marks_with_it() -> None:
    budget = make_budget(200_000, None, 1_000, BudgetPolicy(ceiling_tokens=100_000))
    tight = budget.limit(9_700)
    assert (tight.usable, tight.high, tight.soft) == (9_700, 9_700, 3_880)
    assert budget.limit(97_000) is budget
    assert (budget.limit(-5).usable, budget.limit(-5).soft) == (0, 0)


def test_bytes_that_are_known_to_be_plain_need_no_look() -> None:
    budget = make_budget(None, None, None, BudgetPolicy(ceiling_tokens=10_000))
    assert is_below_soft_mark(budget, budget.soft - 1_025)
    assert not is_below_soft_mark(budget, budget.soft - 1_024)
    assert has_token_bound(b'{"role":"user"}')
    assert not has_token_bound(b'{"type":"image_url"}')


@given(st.text())
def test_stretches_are_the_text(text: str) -> None:
    assert "".join(cut_stretches(text)) == text


RUNS = st.tuples(
    st.sampled_from("a中-1 \u2003é\n"), st.sampled_from([1, 7, LONGEST_RUN - 1, LONGEST_RUN, LONGEST_RUN + 3])
)
RUN = re.compile(rf"[A-Za-z\u0080-\U0010ffff]{{{LONGEST_RUN},}}|[^A-Za-z0-9\s]{{{LONGEST_RUN},}}|\s{{{LONGEST_RUN},}}")


@settings(max_examples=30)
@given(st.lists(RUNS, max_size=5))
def test_the_runs_are_those_that_a_search_from_each_character_finds(runs: list[tuple[str, int]]) -> None:
    text, start, expected = "".join(character * size for character, size in runs), 0, list[str]()
    for run in RUN.finditer(text):
        for end in range(run.start() + LONGEST_RUN, run.end(), LONGEST_RUN):
            expected.append(text[start:end])
            start = end
    assert list(cut_stretches(text)) == [*expected, text[start:]]


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 2), ("é", 1), ("\ud800", 1)])
def test_an_estimate_is_a_third_of_the_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


def test_a_ratio_moves_a_fifth_of_the_way_to_what_usage_says() -> None:
    assert TokenRatio(1.0).learn(1000, 1500) == TokenRatio(1.1)


def test_a_ratio_that_is_told_the_same_again_and_again_comes_near_it() -> None:
    ratio = TokenRatio(1.0)
    for _ in range(40):
        ratio = ratio.learn(10_000, 13_000)
    assert ratio.apply(1000) == 1300


@pytest.mark.parametrize(("ours", "theirs"), [(499, 600), (1000, 0)])
def test_small_requests_and_missing_counts_teach_nothing(ours: int, theirs: int) -> None:
    assert TokenRatio(1.0).learn(ours, theirs) == TokenRatio(1.0)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**9))))
def test_a_ratio_stays_in_its_bounds_whatever_it_is_told(told: list[tuple[int, int]]) -> None:
    ratio = TokenRatio(1.0)
    for ours, theirs in told:
        ratio = ratio.learn(ours, theirs)
    assert 0.5 <= ratio.value <= 2.5


@pytest.mark.parametrize(
    ("model", "value"), [("gpt-4o", 1.0), ("claude-x", 1.15), ("gemini-2.0", 1.15), ("qwen3", 1.0)]
)
def test_a_family_is_guessed_at_first(model: str, value: float) -> None:
    assert guess_ratio(identify_family(model)).value == value


@pytest.mark.parametrize(
    ("ceiling", "trigger", "protected", "usable", "soft", "low"),
    [
        (32_000, 20_000, 0, 20_000, 18_624, 6_000),  # between the marks: only the high mark is lower
        (32_000, 12_000, 0, 12_000, 12_000, 3_600),  # below the soft mark: nothing is cleared before it
        (32_000, 31_040, 0, 31_040, 18_624, 9_312),
        (32_000, 90_000, 0, 31_040, 18_624, 9_312),
        (32_000, 10, 0, LEAST_TRIGGER, LEAST_TRIGGER, 2_400),
        (6_000, 10, 0, 5_820, 3_492, 1_746),
        (32_000, 12_000, 6_000, 12_000, 12_000, 3_600),
        (32_000, 12_000, 9_000, 15_000, 15_000, 4_500),  # what must stay is not cut for a trigger
        (32_000, 12_000, 30_000, 31_040, 18_624, 9_312),
        (128_000, 100_000, 0, 100_000, 49_664, 20_000),
        (128_000, 30_000, 0, 30_000, 30_000, 9_000),
    ],
)
def test_a_trigger_lowers_the_high_mark_and_clears_nothing_before_it(
    ceiling: int, trigger: int, protected: int, usable: int, soft: int, low: int
) -> None:
    budget = make_budget(1_000_000, None, None, BudgetPolicy(ceiling)).begin_at(trigger, protected)
    assert (budget.usable, budget.soft) == (usable, soft)
    assert budget.compute_low_mark(0) == low


@pytest.mark.parametrize(
    ("window", "ceiling", "output", "mark", "expected"),
    [
        (None, 32_000, None, ModelPolicy(), 24_832),  # 0.8 of the ceiling less 3 %
        (None, 400_000, 8_000, ModelPolicy(), 148_992),  # an unknown window counts as 200,000
        (20_000, 32_000, 4_000, ModelPolicy(), 12_416),  # what the window leaves beside the output
        (None, 32_000, None, ModelPolicy(compaction_ratio=0.5), 15_520),
        (None, 32_000, None, ModelPolicy(safety_margin_tokens=2_000), 24_000),
        (
            None,
            32_000,
            None,
            ModelPolicy(compaction_ratio=1, safety_margin_tokens=0),
            31_040,
        ),  # the high mark
        (9_000, 32_000, 9_000, ModelPolicy(), 0),
        (None, 32_000, None, ModelPolicy(safety_margin_tokens=40_000), 0),
    ],
)
def test_memory_is_made_above_a_share_of_the_tokens_for_input(
    window: int | None, ceiling: int, output: int | None, mark: ModelPolicy, expected: int
) -> None:
    budget = make_budget(window, None, output, BudgetPolicy(ceiling), memory=mark)
    assert budget.soft == expected
    assert (budget.high, budget.window) == (make_budget(window, None, output, BudgetPolicy(ceiling)).high, window)


def test_the_first_pattern_of_a_model_says_when_memory_is_made() -> None:
    stated = {"local-*": ModelPolicy(compaction_ratio=0.5), "local-7b": ModelPolicy(compaction_ratio=0.6)}
    assert find_model_policy(stated, "local-7b") == ModelPolicy(compaction_ratio=0.5)
    assert find_model_policy(stated, "gpt-4o") == ModelPolicy()


SHARES = [0.0, 0.5, 0.79, 0.8, 0.85, 0.9, 0.99, 1.0, 1.01, 1.5, 3.0, 10.0]


@pytest.mark.parametrize("ceiling", [8_000, 16_000, 32_000, 128_000])
def test_messages_keep_a_share_of_the_ceiling_beside_a_preamble_of_any_size(ceiling: int) -> None:
    budget = of_ceiling(ceiling)
    for share in SHARES:
        preamble = int(share * budget.usable)
        lifted = budget.lift(preamble)
        assert lifted.usable == budget.usable and lifted.soft - lifted.lifted == budget.soft
        if share <= 0.8:
            assert lifted is budget
        if share >= 1:
            assert lifted.high - preamble == pytest.approx(0.3 * budget.usable, abs=1)
        assert lifted.high - preamble >= 0.2 * budget.usable - 1


@given(st.integers(1_000, 400_000), st.integers(0, 1_000_000))
def test_the_marks_rise_with_the_preamble_without_a_jump(ceiling: int, preamble: int) -> None:
    budget = of_ceiling(ceiling)
    one, two = budget.lift(preamble), budget.lift(preamble + 1)
    assert 0 <= two.high - one.high <= 3
    plain = one.lower(one.lifted)
    assert (plain.usable, plain.soft, plain.lifted) == (budget.usable, budget.soft, 0)


@given(st.integers(0, 100_000), st.integers(0, 40_000))
def test_a_lifted_budget_decides_as_one_whose_preamble_is_that_much_smaller(preamble: int, rest: int) -> None:
    budget = of_ceiling(16_000)
    lifted = budget.lift(preamble)
    tokens, plain = preamble + rest, preamble + rest - lifted.lifted
    assert lifted.compute_low_mark(tokens) == budget.compute_low_mark(plain) + lifted.lifted
    assert lifted.is_ceiling_unreachable(tokens) == budget.is_ceiling_unreachable(plain)
    assert lifted.compute_pressure(tokens) == budget.compute_pressure(plain)


def test_a_known_window_bounds_how_far_the_marks_rise() -> None:
    budget = make_budget(32_000, 4_000, 4_000, BudgetPolicy(ceiling_tokens=16_000))
    assert budget.most == 23_280
    assert budget.lift(40_000).high == budget.most
    assert budget.lift(40_000).scale(1.0).limit(9_000) == budget.limit(9_000)
    full = make_budget(16_000, 4_000, 4_000, POLICY)
    assert full.lift(40_000) is full
    none = make_budget(8_000, 8_000, 8_000, POLICY)
    assert none.usable == 0 and none.lift(40_000) is none
    assert budget.scale(2.0).most == 11_640 and budget.lift(40_000).begin_at(12_000).high == 12_000
    assert budget.lift(40_000).begin_at(30_000) == budget.lift(40_000)
    assert budget.lower(1_000).window == 31_000


@pytest.mark.parametrize(
    ("message", "refers"),
    [
        (b'{"type":"input_file","file_id":"file-1"}', True),
        (b'{"type":"document","source":{"type":"url","url" : "https://e.example/a.pdf"}}', True),
        (b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}', False),
        (b'{"role":"user","content":"\\"file_id\\": \\"file-1\\""}', False),
    ],
)
def test_a_message_that_names_content_is_told_from_one_that_has_it(message: bytes, refers: bool) -> None:
    assert has_reference(message) is refers


@pytest.mark.parametrize("kind", ["a", "é", "=", " ", "\n", "中", "aé"])
def test_a_long_run_of_one_kind_is_cut(kind: str) -> None:
    text = "before " + kind * (3 * LONGEST_RUN) + " after."
    stretches = list(cut_stretches(text))
    assert "".join(stretches) == text
    assert 3 <= len(stretches) <= 3 * len(kind) + 1
    assert max(map(len, stretches)) <= 2 * LONGEST_RUN


@pytest.mark.parametrize("text", ["", "word " * 10_000, '{"a":1,"b":[2]}' * 5000, "a" * (LONGEST_RUN - 1)])
def test_text_without_long_runs_is_one_stretch(text: str) -> None:
    assert list(cut_stretches(text)) == [text]
