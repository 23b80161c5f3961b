"""PyTorch Geometric: a graph network under stock DDP, its DataLoader with a DistributedSampler and worker processes.

geometric_program.py FOLDER [line]: under torchrun; with `line` over ringdp.
"""

from __future__ import annotations

from typing import Any

import launched
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool


class Net(torch.nn.Module):
    """Two convolutions and a mean over each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = GCNConv(4, 16), GCNConv(16, 16), torch.nn.Linear(16, 1)

    def forward(self, batch: Data) -> torch.Tensor:
        hidden = self.first(batch.x, batch.edge_index).relu()
        hidden = self.second(hidden, batch.edge_index).relu()
        return self.head(global_mean_pool(hidden, batch.batch))


def graphs(count: int) -> list[Data]:
    """Of unequal sizes, so batches and their gradients are unequal, too."""
    generator = torch.Generator().manual_seed(2)
    found = []
    for number in range(count):
        nodes = 3 + number % 5
        x = torch.randn(nodes, 4, generator=generator)
        edges = torch.randint(nodes, (2, 2 * nodes), generator=generator)
        found.append(Data(x=x, edge_index=edges, y=x.sum().view(1, 1)))
    return found


def train(folder: str, way: str = "") -> dict[str, Any]:
    """Three epochs; what came out."""
    if way == "line":
        dist.init_process_group("ringdp")
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = DistributedSampler(graphs(21), seed=4)
    loader = DataLoader(graphs(21), batch_size=3, sampler=sampler, num_workers=2)
    losses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), batch.y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses, "weights": [parameter.flatten().tolist() for parameter in model.parameters()]}


if __name__ == "__main__":
    launched.main(train)
