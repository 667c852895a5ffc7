"""A small network learns handwritten digits from batches that a daemon makes: python train.py
SOCKET EPOCHS
"""

import json
import sys
import time

import torch
from torch import nn

from loaderd_client import Loader

socket, epochs = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
criterion = nn.CrossEntropyLoss()

begin = time.perf_counter()
with Loader(socket, stream="train") as train, Loader(socket, stream="test") as test:
    for epoch in range(epochs):
        train.set_epoch(epoch)
        seen, total, keys = 0, 0.0, []
        for batch in train:
            loss = criterion(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total = seen + batch.rows, total + loss.item() * batch.rows
            keys += batch.sample_keys
        if not len(keys) == len(set(keys)) == seen == len(train) * train.batch_size:
            raise SystemExit(
                f"epoch {epoch} had {len(keys)} images, {len(set(keys))} different ones, "
                f"of {len(train) * train.batch_size}"
            )
        print(f"epoch {epoch:2}  loss {total / seen:.4f}  {seen} images", flush=True)
    spent = time.perf_counter() - begin

    right = count = 0
    with torch.no_grad():
        for batch in test:
            right += int((model(batch["image"]).argmax(1) == batch["label"]).sum())
            count += batch.rows

    stats = train.stats()
    result = {
        "accuracy": right / count,
        "held_out": count,
        "batches": stats["batches"],
        "images_per_s": stats["batches"] * train.batch_size / spent,
        "wait_fraction": stats["wait_fraction"],
    }
    print(json.dumps(result), flush=True)
