"""Write the model of a run for other runtimes, and compare it with the run before it counts as finished."""
