"""What ringdp.checkpoint saves and loads of a ZeroOptimizer."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from odd_run import OPTIMIZERS, OddRun, model_of
from ranks import HERE, error_of, on_ranks
from ringdp.checkpoint import CheckpointError, Contents, Spec
from ringdp.checkpoint.optimizer_state import Groups
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.clip import clip_grad_norm_
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.stored import StoredParameters, StoredState
from small_models import loss_of as mlp_loss
from torch import nn
from zero_rig import ADAMW, differences, model, reference, same, steps, wrapped

checkpoint = ringdp.checkpoint


def save(folder: str, kind: str, stage: int | None) -> None:
    """On a rank, or in one process."""
    run = OddRun(kind, stage)
    run.steps(3)
    checkpoint.save(folder, run.wrapped, run.optimizer)


def load_and_save(folder: str, kind: str, stage: int | None) -> str:
    """Into a run that has another state; the path of what it saves then, and nothing else is in `folder`."""
    run = OddRun(kind, stage, lr=5.0)
    run.steps(1)
    checkpoint.load(folder, run.wrapped, run.optimizer)
    return str(checkpoint.save(folder, run.wrapped, run.optimizer, keep=1))


def unequal(found: Contents, expected: Contents) -> list[str]:
    """Tensors, and settings as a whole, that differ; but for the state of parameters without elements."""
    wrong = ["settings"] * (settings_of(found) != settings_of(expected))
    wrong += ["kinds"] * (found.tensors.keys() != expected.tensors.keys())
    for kind, tensors in expected.tensors.items():
        there = {name: t for name, t in tensors.items() if kind == "parameter" or name != "empty"}
        here = {n: t for n, t in found.tensors.get(kind, {}).items() if kind == "parameter" or n != "empty"}
        wrong += sorted(f"{kind}/{name}" for name in there.keys() ^ here.keys())
        wrong += [f"{kind}/{name}" for name in there.keys() & here.keys() if not same(there[name], here[name])]
    return wrong


def settings_of(contents: Contents) -> dict[str, Any]:
    optimizer = contents.settings["optimizer"]
    values = {name: entry for name, entry in optimizer["values"].items() if name != "empty"}
    return {**optimizer, "values": values}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_shards_are_saved_as_one_process_saves_and_travel_without_a_change(trio, pair, kind, stage, tmp_path):
    alone, sharded = tmp_path / "alone", tmp_path / "sharded"
    save(str(alone), kind, None)
    trio.run(save, str(sharded), kind, stage)
    expected = checkpoint.read(alone)
    assert unequal(checkpoint.read(sharded), expected) == []
    pair.run(load_and_save, str(sharded), kind, 3 - stage)
    assert unequal(checkpoint.read(sharded), expected) == []
    load_and_save(str(sharded), kind, None)
    assert unequal(checkpoint.read(sharded), expected) == []


def test_the_odd_training_has_all_that_the_format_must_carry(tmp_path):
    """Else the tests above would prove nothing of it."""
    save(str(tmp_path), "adamw", None)
    contents = checkpoint.read(tmp_path)
    assert set(contents.tensors) == {"parameter", "buffer", "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    assert set(contents.tensors["parameter"]) - set(contents.tensors["exp_avg"]) == {
        *("frozen.weight", "frozen.bias", "unused.weight", "unused.bias")
    }
    assert "second.weight" not in contents.tensors["parameter"]
    assert [group["lr"] for group in contents.settings["optimizer"]["groups"]] == [0.02 * 0.9**3, 0.01 * 0.9**3]


def save_fresh(folder: str) -> None:
    run = OddRun("adamw", None)
    checkpoint.save(folder, run.wrapped, run.optimizer)


def test_state_that_was_not_saved_does_not_stay(pair, tmp_path):
    save_fresh(str(tmp_path))
    expected = checkpoint.read(tmp_path)
    pair.run(load_and_save, str(tmp_path), "adamw", 2)
    assert set(expected.tensors) == {"parameter", "buffer"}
    assert unequal(checkpoint.read(tmp_path), expected) == []


def train(folder: str, how: str) -> list[str]:
    """On a rank: a training that is saved while it goes on, at once or in the background."""
    run = OddRun("adamw", 2)
    run.steps(2)
    if how == "background":
        pending = checkpoint.save_async(folder, run.wrapped, run.optimizer)
        run.steps(2, start=2)
        pending.wait()
    else:
        checkpoint.save(folder, run.wrapped, run.optimizer)
    return []


def test_in_the_background_the_state_at_the_call_is_written(trio, tmp_path):
    for how in ("background", "at once"):
        trio.run(train, str(tmp_path / how), how)
    assert unequal(checkpoint.read(tmp_path / "background"), checkpoint.read(tmp_path / "at once")) == []


def half_a_step(folder: str) -> tuple[str, list[str]]:
    """On a rank: what save says between a backward pass that steps and its step(); what differs after a load then."""
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, overlap_with_ddp=True, **ADAMW)
    steps(ddp, optimizer, 2)
    checkpoint.save(folder, ddp, optimizer)
    optimizer.zero_grad()
    mlp_loss(ddp, HERE.rank, 2, 0).backward()
    said = error_of(checkpoint.save, folder, ddp, optimizer, kind=CheckpointError)
    checkpoint.load(folder, ddp, optimizer)
    steps(ddp, optimizer, 1, start=2)
    return said, differences(ddp, optimizer, *reference("AdamW", 3, ADAMW))


def test_half_a_step_is_not_saved_and_a_checkpoint_mends_it(pair, tmp_path):
    for said, wrong in pair.run(half_a_step, str(tmp_path)):
        assert "saving a checkpoint, on rank 0 (and on rank 1)" in said and "step() has not been called since" in said
        assert wrong == []
    assert [path.name for path in sorted(tmp_path.glob("checkpoint-*"))] == ["checkpoint-000001"]


def everything(run: OddRun) -> list[bytes]:
    """The bits of all that a failed load must not touch."""
    inner = run.optimizer._optimizer
    tensors = [*run.model.parameters(), *run.model.buffers()]
    tensors += [v for entry in inner.state.values() for v in entry.values()]
    settings = [
        {k: v for k, v in g.items() if k != "params"} for g in (*run.optimizer.param_groups, *inner.param_groups)
    ]
    return [bytes(t.detach().contiguous().flatten().view(torch.uint8).tolist()) for t in tensors] + [
        repr([settings, torch.get_rng_state().tolist()]).encode()
    ]


def load_in_vain(folder: str, kind: str, stage: int) -> tuple[str, bool]:
    """On a rank: the error, and whether everything is as it was."""
    run = OddRun(kind, stage)
    run.steps(2)
    before = everything(run)
    said = error_of(checkpoint.load, folder, run.wrapped, run.optimizer, kind=CheckpointError)
    return said, everything(run) == before


@pytest.mark.parametrize("file", ["__1_0.distcp", ".metadata", "ringdp.json"])
@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_a_damaged_checkpoint_changes_nothing_and_its_file_is_named(pair, file, how, tmp_path):
    pair.run(save, str(tmp_path), "adamw", 2)
    damage(next(tmp_path.glob(f"checkpoint-*/{file}")), how)
    outcomes = pair.run(load_in_vain, str(tmp_path), "adamw", 2)
    assert outcomes[0] == outcomes[1]
    said, untouched = outcomes[0]
    assert file in said and untouched


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        at = len(content) // 2
        path.write_bytes(content[:at] + bytes(255 - byte for byte in content[at : at + 200]) + content[at + 200 :])


def test_another_optimizers_checkpoint_is_refused(pair, tmp_path):
    pair.run(save, str(tmp_path), "sgd", 1)
    for said, untouched in pair.run(load_in_vain, str(tmp_path), "adamw", 2):
        assert "checkpoint is of SGD, this optimizer is AdamW" in said and "checkpoint-000001" in said
        assert untouched


def of_16_bits(masters: bool | None) -> tuple[nn.Module, Any]:
    """A bfloat16 model; masters None: with torch's optimizer."""
    module = model(torch.bfloat16)
    if masters is None:
        return module, torch.optim.AdamW(module.parameters(), **ADAMW)
    dtype = torch.float32 if masters else None
    return module, ZeroOptimizer(module.parameters(), torch.optim.AdamW, master_dtype=dtype, **ADAMW)


def step(module: nn.Module, optimizer: Any, gradient: float) -> None:
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


def save_stored_parameters(folder: str, masters: bool | None) -> None:
    module, optimizer = of_16_bits(masters)
    step(module, optimizer, 0.3)
    checkpoint.save(folder, module, optimizer)


def go_on(folder: str, masters: bool | None) -> list[str]:
    """On a rank: loads, saves to "loaded", steps and saves to "stepped"; the warnings."""
    module, optimizer = of_16_bits(masters)
    step(module, optimizer, -1.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        checkpoint.load(folder, module, optimizer)
    checkpoint.save(f"{folder}/loaded", module, optimizer)
    step(module, optimizer, 0.2)
    checkpoint.save(f"{folder}/stepped", module, optimizer)
    return [str(warning.message) for warning in said if "ringdp" in str(warning.message)]


def assert_alike(found: dict[str, dict[str, torch.Tensor]], expected: dict[str, dict[str, torch.Tensor]]) -> None:
    assert found.keys() == expected.keys()
    for kind, tensors in expected.items():
        assert found[kind].keys() == tensors.keys()
        assert [name for name in tensors if not same(found[kind][name], tensors[name])] == [], kind


def test_masters_travel_to_another_number_of_ranks(trio, pair, tmp_path):
    trio.run(save_stored_parameters, str(tmp_path), True)
    saved = checkpoint.read(tmp_path).tensors
    assert all(master.dtype == torch.float32 for master in saved["master"].values())
    assert not all(same(master, saved["parameter"][name].float()) for name, master in saved["master"].items())
    assert pair.run(go_on, str(tmp_path), True) == [[], []]
    assert_alike(checkpoint.read(tmp_path / "loaded").tensors, saved)


def test_without_saved_masters_they_are_the_parameters(pair, tmp_path):
    save_stored_parameters(str(tmp_path), None)
    saved = checkpoint.read(tmp_path).tensors
    assert pair.run(go_on, str(tmp_path), True) == [[], []]
    widened = {kind: {name: t.float() for name, t in tensors.items()} for kind, tensors in saved.items()}
    expected = {**widened, "parameter": saved["parameter"], "master": widened["parameter"]}
    assert_alike(checkpoint.read(tmp_path / "loaded").tensors, expected)


@pytest.mark.parametrize("masters", [False, None])
def test_who_has_no_masters_goes_on_from_the_parameters_and_is_told(pair, tmp_path, masters):
    pair.run(save_stored_parameters, str(tmp_path), True)
    saved = checkpoint.read(tmp_path).tensors
    told = pair.run(go_on, str(tmp_path), masters) if masters is not None else [go_on(str(tmp_path), None)]
    assert all("float32 masters of 6 parameters" in warning and "master_dtype" in warning for (warning,) in told)
    rounded = {kind: {n: t.bfloat16() for n, t in saved[kind].items()} for kind in ("exp_avg", "exp_avg_sq")}
    kept = {kind: saved[kind] for kind in ("parameter", "step")}
    assert_alike(checkpoint.read(tmp_path / "loaded").tensors, {**kept, **rounded})
    assert checkpoint.read(tmp_path / "stepped").tensors["step"]["0.weight"] == 2


@on_ranks(2, (True, True))
def test_values_that_were_put_elsewhere_are_offered() -> tuple[bool, bool]:
    """What users put into .data, or write to a 16-bit parameter, is what is offered."""
    module = nn.Linear(70, 60, dtype=torch.bfloat16)
    optimizer = ZeroOptimizer(module.parameters(), torch.optim.SGD, lr=0.1, master_dtype=torch.float32)
    module.weight.data = torch.full_like(module.weight, 3.0)
    names = {parameter: name for name, parameter in module.named_parameters()}
    pieces = list(StoredParameters(optimizer._flats, names).pieces())
    offered = [piece.tensor.float().unique().tolist() for piece in pieces if piece.name == "weight"]
    return all(values == [3.0] for values in offered), len(offered) == 2 * bool(HERE.rank < 2)


@on_ranks(2, error=("CheckpointError", "that the optimizer shards is not in the model"))
def test_a_parameter_outside_the_model_is_named() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = ZeroOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)
    StoredParameters(optimizer._flats, {p: n for n, p in module[0].named_parameters()})


@on_ranks(2)
def test_what_does_not_fit_is_named() -> None:
    """What a model of another width is told, and one with another parameter."""
    said = []
    for other in (nn.Linear(4, 5), nn.Sequential(nn.Linear(4, 4))):
        optimizer = ZeroOptimizer(other.parameters(), torch.optim.SGD, lr=0.1)
        holder = StoredParameters(optimizer._flats, {p: n for n, p in other.named_parameters()})
        specs = [piece.stretch.spec for piece in checkpoint.holders.ModuleHolder(nn.Linear(4, 4)).pieces()]
        said.append(error_of(list, holder.wants(specs, {}), kind=CheckpointError))
    shape, name = said
    assert "[5]" in shape and "[4]" in shape and "bias" in shape
    assert "lacks parameter/0.bias" in name


class Noisy:
    """A training whose every step depends on both generators and on the position in the row of batches."""

    def __init__(self, stage: int) -> None:
        torch.manual_seed(4)
        net = nn.Sequential(nn.Linear(20, 90), nn.Dropout(0.3), nn.Linear(90, 90), nn.Dropout(0.3), nn.Linear(90, 4))
        self.ddp = DistributedDataParallel(net, zero_stage=stage, bucket_cap_mb=0.02)
        self.optimizer = ZeroOptimizer(self.ddp.parameters(), torch.optim.AdamW, lr=0.01)
        self.position = 0
        torch.manual_seed(100 + HERE.rank)
        random.seed(200 + HERE.rank)

    def steps(self, count: int) -> None:
        for _ in range(count):
            source = torch.Generator().manual_seed(10 * self.position + HERE.rank)
            batch = torch.randn(6, 20, generator=source) * random.uniform(0.5, 2)
            self.optimizer.zero_grad()
            self.ddp(batch).square().mean().backward()
            clip_grad_norm_(self.ddp.parameters(), 0.05)
            self.optimizer.step()
            self.position += 1

    def save(self, folder: str) -> None:
        checkpoint.save(folder, self.ddp, self.optimizer, extra={"position": self.position})


def train_through(folder: str, stage: int) -> None:
    run = Noisy(stage)
    run.steps(3)
    run.save(f"{folder}/middle")
    run.steps(3)
    run.save(f"{folder}/end")


def train_resumed(folder: str, stage: int) -> None:
    run = Noisy(stage)
    run.steps(1)
    run.position = checkpoint.load(f"{folder}/middle", run.ddp, run.optimizer).extra["position"]
    run.steps(3)
    run.save(f"{folder}/resumed")


@pytest.mark.parametrize(("saved_at", "resumed_at"), [(2, 2), (2, 1), (1, 2)])
def test_as_many_ranks_go_on_bit_for_bit_at_any_stage(trio, tmp_path, saved_at, resumed_at):
    trio.run(train_through, str(tmp_path), saved_at)
    trio.run(train_resumed, str(tmp_path), resumed_at)
    found, expected = (checkpoint.read(tmp_path / name) for name in ("resumed", "end"))
    assert found.extras == expected.extras == [{"position": 6}] * 3
    assert found.tensors.keys() == expected.tensors.keys()
    for kind, tensors in expected.tensors.items():
        assert [name for name in tensors if not same(found.tensors[kind][name], tensors[name])] == [], kind


@pytest.mark.parametrize("stage", [1, 2])
@on_ranks(2)
def test_state_without_a_place_is_refused_by_name(stage: int) -> None:
    """What is said of state without a place, of a frozen parameter and of an unknown one."""
    run = OddRun("adamw", stage)
    names = {parameter: name for name, parameter in run.model.named_parameters()}
    optimizer = run.optimizer
    groups = Groups("AdamW", optimizer.param_groups, names)
    holder = StoredState(optimizer._flats, optimizer._optimizer, groups, names)
    specs = Spec("exp_avg", "frozen.weight", (64, 40), "float32"), Spec("exp_avg", "stranger", (2,), "float32")
    frozen, stranger = (
        error_of(lambda s=spec: list(holder.wants([s], holder.settings())), kind=CheckpointError) for spec in specs
    )
    assert ("frozen.weight needs no gradient" in frozen) == (stage == 2)
    assert "no parameter for exp_avg/stranger" in stranger


def taken_frozen(folder: str) -> list[str]:
    """On a rank, at stage 1: the state of a parameter that was trained before it was frozen stays."""
    run = OddRun("sgd", 1)
    checkpoint.load(folder, run.wrapped, run.optimizer)
    checkpoint.save(folder, run.wrapped, run.optimizer)
    return sorted(checkpoint.read(folder).tensors["momentum_buffer"])


def test_state_of_a_frozen_parameter_is_kept_at_stage_1(pair, tmp_path):
    run: Any = OddRun("sgd", None)
    run.steps(1)
    run.optimizer.state[run.model.frozen.weight]["momentum_buffer"] = torch.rand_like(model_of().frozen.weight)
    checkpoint.save(tmp_path, run.model, run.optimizer)
    for kept in pair.run(taken_frozen, str(tmp_path)):
        assert "frozen.weight" in kept


def replicas(folder: str) -> list[list[str]]:
    """On one of four ranks: two groups of two train alike; all four save, and load what they have saved."""
    half = dist.new_group([HERE.rank // 2 * 2, HERE.rank // 2 * 2 + 1], use_local_synchronization=True)
    module = model()
    optimizer = ZeroOptimizer(list(module.parameters())[:2], torch.optim.AdamW, half, **ADAMW)
    optimizer.add_param_group({"params": list(module.parameters())[2:], "lr": torch.tensor(0.5)})
    for parameter in module.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    before = [p.detach().clone() for p in module.parameters()]
    checkpoint.save(folder, module, optimizer)
    optimizer.step()
    optimizer.param_groups[1]["lr"].fill_(9.0)
    checkpoint.load(folder, module, optimizer)
    plain = model()
    stock = torch.optim.AdamW([{"params": list(plain.parameters())[:2]}, {"params": list(plain.parameters())[2:]}])
    for parameter in plain.parameters():
        parameter.grad = torch.ones_like(parameter)
    stock.step()
    checkpoint.load(f"{folder}/checkpoint-000001", plain, stock, group=dist.group.WORLD)
    rates = [float(optimizer.param_groups[1]["lr"]), stock.param_groups[1]["lr"]]
    return [
        [str(rate) for rate in rates if rate != 0.5],
        [name for (name, p), b in zip(module.named_parameters(), before, strict=True) if not same(p, b)],
        [name for (name, p), b in zip(plain.named_parameters(), before, strict=True) if not same(p, b)],
    ]


def test_shards_that_several_groups_have_and_groups_that_were_added(world_of, tmp_path):
    assert world_of(4).run(replicas, str(tmp_path)) == [[[], [], []]] * 4


@pytest.mark.parametrize("master", [None, torch.float32])
@pytest.mark.parametrize("stage", [1, 2])
def test_averages_that_are_swapped_in_are_saved_and_nothing_is_lost(pair, stage, master, tmp_path):
    assert pair.run(save_averages, str(tmp_path), stage, master) == [True] * 2


def save_averages(folder: str, stage: int, master: torch.dtype | None) -> bool:
    """On a rank: whether the checkpoint has what was swapped in, and training goes on with what was swapped out."""
    dtype = torch.float32 if master is None else torch.bfloat16
    ddp = DistributedDataParallel(model(dtype), zero_stage=stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1, master_dtype=master)
    averages = [torch.full_like(p, 0.5) for p in ddp.parameters()]

    def swap() -> None:
        for parameter, average in zip(ddp.parameters(), averages, strict=True):
            parameter.data, average.data = average.data, parameter.data

    batch = torch.ones(2, 12, dtype=dtype)
    ddp(batch).float().square().sum().backward()
    optimizer.step()
    before = [p.detach().clone() for p in ddp.parameters()]
    masters = [copy.clone() for copy in optimizer._flats[0].fp32_copies if copy is not None]
    swap()
    checkpoint.save(folder, ddp, optimizer)
    swap()
    tensors = checkpoint.read(folder).tensors
    is_saved = all(bool((t == 0.5).all()) for kind in ("parameter", "master") for t in tensors.get(kind, {}).values())
    copies = [copy for copy in optimizer._flats[0].fp32_copies if copy is not None]
    return (
        is_saved
        and all(map(torch.equal, ddp.parameters(), before))
        and len(masters) == len(copies)
        and all(map(torch.equal, copies, masters))
    )
