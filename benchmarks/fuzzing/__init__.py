"""The parts of benchmarks/fuzz.py: mutations, commands in forked children, and one module for each kind of case."""

import os

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
os.environ |= {"HF_HUB_OFFLINE": "1"}  # before torch and transformers are imported
