"""What became of all blocks, as tables and bars of one report."""

from collections.abc import Sequence

from collm.pacing.config import Objectives, PacingConfig
from common import Report
from slo_report import (
    LATENCY,
    OBJECTIVE,
    OFF,
    UNCONTROLLED,
    Bar,
    Block,
    Summary,
    calibration_rows,
    judge,
    latency_row,
    pairable,
    raw_block,
    summarize,
    training_row,
)


def report_blocks(
    report: Report, blocks: Sequence[Block], loads: Sequence[float], seed: int
) -> None:
    """Add the tables, bars and raw figures of ``blocks`` to a report."""
    quantile = PacingConfig().quantile
    summaries, bars = _summarize_all(blocks, loads, seed)
    tables = {
        "What users notice": [latency_row(one) for one in summaries],
        "What training cost and got": [training_row(one) for one in summaries if one.arm != OFF],
        f"Times under their {quantile:.0%} bound": calibration_rows(blocks),
        "Bars": [bar.row() for bar in bars],
    }
    for title, rows in tables.items():
        if rows:
            report.table(title, rows)
    report.raw["blocks"] = [raw_block(block) for block in blocks]
    report.raw["bars"] = [bar.row() for bar in bars]
    num_met = sum(bar.is_met for bar in bars)
    report.note(f"{num_met} of {len(bars)} bars met.")
    report.note(
        "Share of what serving left: time of quanta, evaluation included, over this arm's wall time"
        " less the step time of training off in the same blocks; above 1 where waiting made steps"
        " fuller, and so fewer. Blocks end with their last answer. Training tokens are those of"
        " finished optimizer steps: what was half done at a block's end is left out."
    )


def _summarize_all(
    blocks: Sequence[Block], loads: Sequence[float], seed: int
) -> tuple[list[Summary], list[Bar]]:
    pacing, objectives = PacingConfig(), Objectives()
    summaries: list[Summary] = []
    bars: list[Bar] = []
    for load in loads:
        off_blocks = [block for block in blocks if block.load == load and block.arm == OFF]
        if not off_blocks:
            continue
        summaries.append(summarize(off_blocks, off_blocks, objectives, seed))
        for arm in (LATENCY, OBJECTIVE, UNCONTROLLED):
            its = [block for block in blocks if block.load == load and block.arm == arm]
            own, beside = pairable(its, off_blocks)
            if not own:
                continue
            summaries.append(summarize(own, beside, objectives, seed))
            if arm != UNCONTROLLED:
                off = summarize(beside, beside, objectives, seed)
                bars += judge(summaries[-1], off, objectives, pacing.max_quantum_s, pacing.quantile)
    return summaries, bars
