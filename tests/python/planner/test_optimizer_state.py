"""ringdp/planner/optimizer_state.py: against the state that torch's optimizers really have."""

import pytest

torch = pytest.importorskip("torch")
from ringdp.planner.fake_memory import CannotCount
from ringdp.planner.optimizer_state import state_bytes
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, RMSprop

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
