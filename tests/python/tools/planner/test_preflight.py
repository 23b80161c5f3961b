"""What a model would hold is counted on a memory that is none, and refused before anything is allocated."""

from __future__ import annotations

import pytest
import ringdp
import torch
from ringdp.tools.planner import preflight
from ringdp.tools.planner.fake_memory import CannotCount, pass_memory, state_bytes
from ringdp.tools.planner.memory import widths
from ringdp.tools.planner.preflight import DoesNotFit
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


# preflight() refuses before anything is allocated, and names what fits; the memory of this machine.

WIDTH, LAYERS = 1 << 14, 32  # 8.6 G parameters


@pytest.fixture
def large():
    with torch.device("meta"):
        return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).bfloat16()


def asked(model, **arguments):
    given = {"device_bytes": "80GB", "ranks": 64, "master_dtype": torch.float32, **arguments}
    return ringdp.preflight(model, torch.optim.AdamW, torch.empty(1, WIDTH, dtype=torch.bfloat16), **given)


def test_what_does_not_fit_is_refused_with_what_does(large):
    with pytest.raises(DoesNotFit) as refusal:
        asked(large)
    sentence = str(refusal.value)
    assert sentence.startswith("preflight: stage 0 on 64 ranks needs 1")
    assert "a device has 80.00 GB" in sentence and "it fits with ZeRO stage 1 from " in sentence
    assert "stage 3 from 2 ranks" in sentence


def test_the_error_is_a_memory_error_and_nothing_was_allocated(large):
    with pytest.raises(MemoryError):
        asked(large)
    assert all(parameter.is_meta and parameter.grad is None for parameter in large.parameters())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_ranks_it_names_fit_and_one_less_does_not(large, stage):
    found = asked(large, stage=3)
    fewest = int(found.fewest_ranks[stage])
    assert asked(large, stage=stage, ranks=fewest).fits
    with pytest.raises(DoesNotFit):
        asked(large, stage=stage, ranks=fewest - 1)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_parameters_gradients_and_state_are_the_formula(large, stage):
    from ringdp.tools.planner import formulas

    count = LAYERS * WIDTH**2
    held = asked(large, stage=3).by_stage[stage]
    expected = formulas.stage_bytes(count, 64, stage, *widths("bf16").three)
    total = held.parameters + held.gradients + held.state + held.master
    assert total == pytest.approx(expected, rel=1e-6)  # Adam counts steps in 4 bytes per tensor


def test_views_save_the_copy_of_gradients(large):
    copied, views = (asked(large, stage=3, gradient_as_bucket_view=flag).by_stage[0] for flag in (False, True))
    assert copied.buckets == copied.gradients and views.buckets == 0


def test_units_are_gathered_at_stage_3_only(large):
    by_stage = asked(large, stage=3).by_stage
    assert [by_stage[s].gathered for s in range(4)] == [0, 0, 0, 2 * 2 * WIDTH**2]


def test_a_small_model_fits_and_prints(capsys):
    found = ringdp.preflight(nn.Linear(8, 8), torch.optim.SGD, torch.zeros(2, 8), device_bytes=1e9, ranks=2)
    assert found.fits and found.fewest_ranks[0] == 1
    assert str(found).splitlines()[1].split()[0] == "stage" and len(str(found).splitlines()) == 6


def test_counts_may_be_given():
    class Looks(nn.Linear):
        def forward(self, x):
            return super().forward(x[: int(x.sum().item())])

    arguments = {"device_bytes": 1e9, "ranks": 1, "activation_bytes": 1000.0, "optimizer_bytes": 500.0}
    held = ringdp.preflight(Looks(8, 8), torch.optim.Adafactor, torch.zeros(2, 8), **arguments).by_stage[0]
    assert (held.activations, held.state) == (1000, 500)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"stage": 4}, "stage=4"), ({"ranks": 0}, "ranks=0"), ({"device_bytes": -1.0}, "device_bytes=-1")],
)
def test_arguments_that_make_no_sense(arguments, named):
    with pytest.raises(ValueError, match=named):
        ringdp.preflight(nn.Linear(8, 8), torch.optim.SGD, torch.zeros(2, 8), **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without CUDA")
def test_local_ranks_share_the_machine(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    whole = preflight.bytes_per_rank()
    with open("/proc/meminfo") as file:
        assert whole == pytest.approx(1024 * int(file.readline().split()[1]), rel=1e-3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert preflight.bytes_per_rank() == whole // 4


def test_ranks_are_torchrun_s_or_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert preflight.world_size() == 1
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert preflight.world_size() == 6
