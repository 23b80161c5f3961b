"""In the manner of nanoGPT's train.py: random offsets, accumulated micro-batches, rank 0 evaluates; no DataLoader."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

backend = sys.argv[1]
block_size, batch_size, max_iters, eval_interval = 16, 4, 60, 10
gradient_accumulation_steps = 2
dist.init_process_group(backend)
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master_process = rank == 0
torch.manual_seed(1337 + rank)
train_data = torch.randint(0, 64, (4096,), generator=torch.Generator().manual_seed(0))


def get_batch():
    ix = torch.randint(len(train_data) - block_size - 1, (batch_size,))
    x = torch.stack([train_data[i : i + block_size] for i in ix])
    y = torch.stack([train_data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(64, 32), nn.Embedding(block_size, 32)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.ln_f = nn.LayerNorm(32)
        self.lm_head = nn.Linear(32, 64, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        logits = self.lm_head(self.ln_f(self.block(x, src_mask=mask, is_causal=True)))
        return logits, F.cross_entropy(logits.view(-1, 64), targets.view(-1))


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    losses = [model(*get_batch())[1].item() for _ in range(3)]
    model.train()
    return sum(losses) / len(losses)


model = DDP(GPT())
raw_model = model.module
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
X, Y = get_batch()
t0 = time.time()
for iter_num in range(max_iters):
    if iter_num % eval_interval == 0 and master_process:
        print(f"step {iter_num}: val loss {estimate_loss(raw_model):.4f}")
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with nullcontext():
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if master_process and iter_num % 20 == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {(time.time() - t0) * 1000:.2f}ms")
dist.destroy_process_group()
