"""Histogram bounds. Those of the names that dashboards know are the Gateway API Inference

Extension's and the llm-d router's (tests/telemetry/peer_metrics.yaml), so that quantiles compare; ours
start where a decision of microseconds is seen.

Their bounds have 32778 where one expects 32768. So have ours: a quantile over pickers of both kinds needs the
same bounds in both.
"""

GENERAL_SECONDS = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
    120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
TPOT_SECONDS = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.5,
    2, 3, 4.5, 6, 12, 18, 24, 30, 36, 48, 60, 90, 120, 180, 270, 360,
)  # fmt: skip
NTPOT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
EPP_TTFT_SECONDS = tuple(bound for bound in GENERAL_SECONDS if bound <= 120)
EPP_TPOT_SECONDS = tuple(bound for bound in TPOT_SECONDS if bound <= 2 and bound != 1.5)
"""The newer names stop earlier: the same counts, shown at fewer bounds."""
REQUEST_BYTES = tuple(2.0**power for power in range(6, 31))
RESPONSE_BYTES = (1, *(2.0**power for power in range(3, 15)), 32778, 65536)
INPUT_TOKENS = (1, *(2.0**power for power in range(3, 15)), 32778, *(2.0**power for power in range(16, 21)))
OUTPUT_TOKENS = (1, *(2.0**power for power in range(3, 14)))
HIT_BYTES = (0, *(2.0**power for power in range(4, 17)))
SHARES = tuple(tenth / 10 for tenth in range(11))

SCHEDULER_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
DECISION_SECONDS = (0.00001, 0.000025, 0.00005, *SCHEDULER_SECONDS, 0.2, 0.5)
"""A superset of `SCHEDULER_SECONDS`: one set of counts is shown under both names."""

LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""0.02 is what nothing may exceed."""

RATIOS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Observed over predicted: 1.0 is a perfect prediction."""

TTFT_SECONDS = tuple(0.001 * 1.25**step for step in range(62))
"""From 1 ms to 14 minutes: the quantiles of the page people look at are within an eighth of the truth."""
