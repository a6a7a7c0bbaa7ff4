"""What could not run is said in one loud line, not in a dot."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = {str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []) if report.longrepr}
    for reason in sorted(each for each in reasons if "NOT RUN" in each):
        terminalreporter.write_line(f"!! {reason.removeprefix('Skipped: ')}", red=True)
