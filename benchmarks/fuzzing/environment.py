"""Variables that must be set before torch and transformers are imported: one thread, no GPU, no network, a wide terminal."""

import os

os.environ |= {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "200",
}
