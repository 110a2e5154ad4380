"""How sure a result is: intervals, paired tests, calibration, power and verdicts, with NumPy and SciPy only.

`scored_rows` turns the predictions of a run into arrays. `metric_estimates` gives each metric with its 95 % interval.
`seeds_estimate` does so for several seeds. `compare` gives a difference with interval and p-value, `decided` its verdict.
Every function that draws random numbers takes a `seed`; equal arguments give equal results.
"""
