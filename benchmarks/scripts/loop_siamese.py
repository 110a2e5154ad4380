"""Two sentences through one encoder, mean pooling, cosine similarity against a score."""

import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import nn
from transformers import AdamW, AutoModel, AutoTokenizer

df = pd.read_csv("pairs.csv")
tokenizer = AutoTokenizer.from_pretrained("tiny-distilbert")
encoder = AutoModel.from_pretrained("tiny-distilbert")


def embed(texts):
    batch = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt", return_token_type_ids=False)
    states = encoder(**batch)[0]
    mask = batch["attention_mask"].unsqueeze(-1)
    return (states * mask).sum(1) / mask.sum(1)


optimizer = AdamW(encoder.parameters(), lr=5e-4, correct_bias=True)
criterion = nn.MSELoss()
losses = []
for epoch in range(2):
    encoder.train()
    for start in range(0, len(df), 8):
        part = df.iloc[start : start + 8]
        score = torch.cosine_similarity(embed(part.text), embed(part.text_b))
        loss = criterion(score, torch.tensor(part.target.values, dtype=torch.float))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
encoder.eval()
with torch.no_grad():
    similarity = torch.cosine_similarity(embed(df.text), embed(df.text_b)).numpy()
correlation = spearmanr(similarity, df.target).statistic
