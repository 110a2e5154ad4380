"""Compare runs: settings, metrics with intervals, paired tests, single rows and curves, from run folders alone."""
