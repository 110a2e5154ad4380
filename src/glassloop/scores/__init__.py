"""How good a result is, and how certain: metrics, intervals, paired tests, calibration and power, with NumPy and SciPy only.

`scored_rows` turns the predictions of a run into arrays. `metric_estimate` gives a metric with its 95% interval,
`seeds_estimate` the mean of several seeds. `compare` gives a difference with interval and p-value, `compare_all` several of
them, corrected for their number, and `decided` the verdict. Nothing is drawn at random: equal arguments give equal results.
"""
