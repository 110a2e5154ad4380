"""The parts of benchmarks/fuzz.py: mutations, commands in forked children, and one module for each kind of case."""
