"""Counting without memory: against what a real pass saves and real optimizers keep, and on models that never exist."""

from __future__ import annotations

import pytest
import torch
from ringdp.tools.planner.fake_memory import CannotCount, pass_memory, state_bytes
from torch import nn
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, RMSprop
from torch.utils.checkpoint import checkpoint


def really_saved(model, batch):
    """Bytes of storages, without parameters and inputs, that a real forward pass hands to autograd."""
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), batch)}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(batch)
    assert out.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


class Attention(nn.Module):
    """One head, and a dropout."""

    def __init__(self):
        super().__init__()
        self.qkv, self.drop = nn.Linear(16, 48), nn.Dropout(0.1)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return self.drop(nn.functional.scaled_dot_product_attention(query, key, value)).relu()


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), nn.Tanh()), (64, 16)),
    "attention": (Attention, (4, 10, 16)),
    "norm": (lambda: nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()), (64, 16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_forward_saves_is_what_it_really_saves(name):
    make, shape = MODELS[name]
    model, batch = make(), torch.randn(shape)
    last = model(batch).nbytes  # the result lives too, whether or not it is saved, and so does the loss
    counted, really = pass_memory(model, batch).saved, really_saved(model, batch)
    assert really <= counted <= really + last + 16


def test_parameters_and_gradients():
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[0].weight.requires_grad_(False)
    found = pass_memory(model, torch.zeros(3, 10))
    assert (found.parameters, found.gradients) == (800, 400)
    assert found.peak >= found.saved


def test_tied_parameters_count_once():
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    assert pass_memory(model, torch.zeros(3, 10)).gradients == 400


def test_saved_grows_with_the_batch():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    small, large = (pass_memory(model, torch.zeros(samples, 16)).saved for samples in (100, 200))
    assert large - 4 == pytest.approx(2 * (small - 4))


def test_checkpointed_layers_save_less():
    class Checkpointed(nn.Sequential):
        def forward(self, x):
            for layer in self:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    layers = [nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(4)]
    plain, less = (pass_memory(kind(*layers), torch.zeros(100, 16)).saved for kind in (nn.Sequential, Checkpointed))
    assert less < plain / 3


def test_a_model_on_meta_is_never_made():
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(1 << 16, 1 << 16, bias=False) for _ in range(8)])  # 137 GB
    found = pass_memory(model, torch.zeros(2, 1 << 16))
    assert found.parameters == 8 * 4 << 32
    assert all(p.is_meta for p in model.parameters())


def test_batches_of_keywords_and_tuples():
    class Adds(nn.Linear):
        def forward(self, x, y):
            return {"sum": super().forward(x + y), "count": 3}

    x = torch.zeros(5, 4)
    assert pass_memory(Adds(4, 4), {"x": x, "y": x}) == pass_memory(Adds(4, 4), (x, x))


def test_tensors_that_are_no_parameters_may_be_real():
    class Masks(nn.Linear):
        def forward(self, x):
            return super().forward(x) * self.mask

    model = Masks(4, 4)
    model.mask = torch.ones(4)
    assert pass_memory(model, torch.zeros(5, 4)).parameters == 80


def test_a_model_that_needs_values_says_what_to_do():
    class Looks(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum().item() > 0 else x

    with pytest.raises(CannotCount, match="give activation_bytes="):
        pass_memory(Looks(4, 4), torch.zeros(5, 4))


def test_a_model_without_a_floating_result_needs_a_loss():
    class Chooses(nn.Linear):
        def forward(self, x):
            return super().forward(x).argmax(1)

    with pytest.raises(CannotCount, match="give loss="):
        pass_memory(Chooses(4, 4), torch.zeros(5, 4))


CHOICES = [
    AdamW,
    lambda p: AdamW(p, lr=0.1, amsgrad=True),
    lambda p: SGD(p, lr=0.1, momentum=0.9),
    SGD,
    Adagrad,
    lambda p: RMSprop(p, centered=True),
]


def parameters(dtype=torch.float32):
    return [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((3, 5), (7,), (2, 2, 2))]


def really_kept(make, real):
    optimizer = make(real)
    for parameter in real:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return sum(v.nbytes for entry in optimizer.state.values() for v in entry.values() if torch.is_tensor(v))


@pytest.mark.parametrize("make", CHOICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_state_is_what_a_real_step_makes(make, dtype):
    assert state_bytes(make, parameters(dtype)) == really_kept(make, parameters(dtype))


def test_an_instance_is_counted_with_its_settings_and_not_touched():
    real = parameters()
    optimizer = Adam(real, amsgrad=True)
    assert state_bytes(optimizer, real) == really_kept(lambda p: Adam(p, amsgrad=True), parameters())
    assert not optimizer.state


def test_frozen_parameters_have_none():
    frozen = parameters()
    for parameter in frozen:
        parameter.requires_grad_(False)
    assert state_bytes(AdamW, frozen) == 0


class Asserts(torch.optim.SGD):
    def step(self, closure=None):
        raise AssertionError


def test_whatever_a_class_fails_with_is_named():
    with pytest.raises(CannotCount, match=r"Asserts cannot step without values \(AssertionError\)"):
        state_bytes(Asserts, [torch.nn.Parameter(torch.ones(2))])


def test_an_optimizer_that_needs_values_is_named():
    with pytest.raises(CannotCount, match=r"Adafactor .*give optimizer_bytes="):
        state_bytes(Adafactor, parameters())
