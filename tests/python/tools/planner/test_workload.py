"""Those built in train; others are found by name, or refused in one line."""

import sys

import pytest
import torch
from ringdp.tools.planner import workload
from ringdp.tools.planner.question import InputError


@pytest.mark.parametrize("name", workload.BUILT_IN)
def test_a_step_lowers_the_loss(name):
    chosen = workload.load(name)
    model, batch = chosen.model(), chosen.batch(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = chosen.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]


def test_models_of_all_ranks_are_equal():
    one, other = (workload.load("mlp").model() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


FILE = (
    "from ringdp.tools.planner.workload import mlp\ndef small():\n    return mlp(2, 8)\ndef nothing():\n    return 3\n"
)


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    (tmp_path / "my_own_workload.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_own_workload"
    sys.modules.pop("my_own_workload", None)


def test_one_s_own(own_file):
    assert sum(p.numel() for p in workload.load(f"{own_file}:small").model().parameters()) == 2 * 72


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("gtp", "type gpt, mlp or module:function"),
        ("no_such_module:f", "ModuleNotFoundError"),
        ("my_own_workload:gone", "AttributeError"),
        ("my_own_workload:nothing", "returned int"),
    ],
)
def test_what_is_wrong_is_one_line(own_file, name, named):
    with pytest.raises(InputError) as refusal:
        workload.load(name)
    assert named in str(refusal.value) and f"'{name}'" in str(refusal.value) and "\n" not in str(refusal.value)
