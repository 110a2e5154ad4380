"""A notebook saved as a script: cells, globals, a progress bar, plots left out, inference with pipeline at the end."""

# %%
import torch
from datasets import Dataset, load_metric
import pandas as pd
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
from tqdm.notebook import tqdm

# %%
df = pd.read_csv("train.csv")
tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert", id2label={0: "NEGATIVE", 1: "POSITIVE"}, label2id={"NEGATIVE": 0, "POSITIVE": 1})
metric = load_metric("accuracy")

# %%
optim = torch.optim.Adam(model.parameters(), lr=5e-4)
loss_values = []
for epoch in range(2):
    for i in range(0, len(df), 6):
        rows = df.iloc[i : i + 6]
        inputs = tokenizer(list(rows.text), padding=True, return_tensors="pt")
        inputs["labels"] = torch.tensor(list(rows.label))
        optim.zero_grad()
        out = model(**inputs)
        out.loss.backward()
        optim.step()
        loss_values.append(out.loss.item())
        metric.add_batch(predictions=out.logits.argmax(-1), references=inputs["labels"])
score = metric.compute()

# %%
model.eval()
classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
answers = [(a["label"], round(a["score"], 3)) for a in classify(["this film was good", "that story was bad"])]
ds = Dataset.from_pandas(df)
print(ds, answers)
