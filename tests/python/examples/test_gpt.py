"""The model, its text, its batches, its wrapper and its learning rate."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import pytest
import ringdp
import torch
import torch.distributed as dist
from ringdp.examples.gpt import (
    GPT,
    KINDS,
    Feed,
    Shape,
    Windows,
    _python_files,
    adamw,
    check_same_text,
    data_parallel,
    learning_rate,
    name_of,
    next_token_loss,
    read_corpus,
    sample,
    set_rate,
    warm_up_steps,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock

SHAPE = Shape(vocabulary=50, context=12, dim=16, layers=2, heads=2, dropout=0.1)


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(SHAPE)


@pytest.mark.parametrize("tokens", [1, 7, 12])
def test_logits_have_a_row_per_token(model, tokens):
    assert model(torch.zeros(3, tokens, dtype=torch.int64)).shape == (3, tokens, SHAPE.vocabulary)


def test_a_token_does_not_see_later_ones(model):
    model.eval()
    tokens = torch.randint(0, 50, (1, 12))
    changed = tokens.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 50
    same = (model(tokens) == model(changed)).all(dim=-1)[0]
    assert same[:8].all()
    assert not same[8:].any()


def test_the_output_projection_is_the_token_embedding(model):
    blocks = sum(p.numel() for p in model.blocks.parameters())
    rest = sum(p.numel() for p in model.parameters()) - blocks
    assert rest == (SHAPE.vocabulary + SHAPE.context + 2) * SHAPE.dim
    assert blocks == SHAPE.layers * (12 * SHAPE.dim**2 + 13 * SHAPE.dim)


def test_an_untrained_model_knows_nothing_and_learns(model):
    windows = torch.randint(0, 50, (4, 13), dtype=torch.uint8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = next_token_loss(model, windows)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(50), abs=0.1)
    assert losses[-1] < losses[0] / 2


def test_sampling_repeats_and_leaves_mode_and_rng_alone(model):
    state = torch.get_rng_state()
    first = sample(model, b"\x01\x02", 20, seed=3)
    assert first == sample(model, b"\x01\x02", 20, seed=3)
    assert first != sample(model, b"\x01\x02", 20, seed=4)
    assert first[:2] == b"\x01\x02"
    assert len(first) == 22
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_reading_twice_gives_the_same_text(text_folder):
    first, second = read_corpus(text_folder), read_corpus(text_folder)
    assert first.digest == second.digest
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.validation, second.validation)


def test_every_file_is_on_one_side(text_folder):
    text = read_corpus(text_folder)
    files = list(text_folder.rglob("*.py"))
    newlines_between = text.files - 2
    assert text.files == len(files)
    assert len(text.train) + len(text.validation) == sum(f.stat().st_size for f in files) + newlines_between
    assert len(text.train) > len(text.validation) > 0


@pytest.mark.parametrize("change", ["contents", "name"])
def test_the_digest_sees_changes(text_folder, change):
    before = read_corpus(text_folder).digest
    file = text_folder / "file_01.py"
    if change == "contents":
        file.write_text(file.read_text().replace("x", "y", 1))
    else:
        file.rename(text_folder / "renamed.py")
    assert read_corpus(text_folder).digest != before


def test_copies_of_a_file_are_on_the_same_side(text_folder):
    before = read_corpus(text_folder)
    for file in sorted(text_folder.glob("*.py")):
        (text_folder / f"copy_of_{file.name}").write_bytes(file.read_bytes())
    after = read_corpus(text_folder)
    copied = sum(f.stat().st_size + 1 for f in text_folder.glob("copy_of_*"))
    assert len(after.train) + len(after.validation) == len(before.train) + len(before.validation) + copied
    assert set(_lines(after.train)).isdisjoint(_lines(after.validation))


def test_site_packages_are_left_out_and_a_limit_ends_the_reading(text_folder):
    whole = read_corpus(text_folder)
    (text_folder / "site-packages").mkdir()
    (text_folder / "site-packages" / "other.py").write_text("x = 1\n")
    assert read_corpus(text_folder).digest == whole.digest
    assert read_corpus(text_folder, limit=1000).files < whole.files


def test_windows_cover_the_text_and_overlap_by_the_byte_to_predict():
    windows = Windows(torch.arange(11, dtype=torch.uint8), 5, "training")
    assert [windows[i].tolist() for i in range(len(windows))] == [[0, 1, 2, 3, 4, 5], [5, 6, 7, 8, 9, 10]]


def test_too_little_text_is_refused_by_size():
    with pytest.raises(ValueError, match="training text has 5 bytes, too few for --seq 5"):
        Windows(torch.zeros(5, dtype=torch.uint8), 5, "training")


@pytest.mark.parametrize("equal", [True, False])
def test_ranks_that_read_another_text_are_named(text_folder, monkeypatch, equal):
    text = read_corpus(text_folder)
    other = ("0" * 64, 12345, "host-b")

    def gather(into, mine):
        into[:] = [mine, mine if equal else other]

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    if equal:
        check_same_text(text)
    else:
        with pytest.raises(RuntimeError, match="rank 1 on host-b: 12345 bytes"):
            check_same_text(text)


def test_the_default_text_is_tens_of_megabytes_of_python():
    from ringdp.examples.train_gpt import parse_options

    found = _python_files(parse_options([]).corpus)
    assert sum(f.stat().st_size for f in found) > 5_000_000


def _lines(text: torch.Tensor) -> list[str]:
    return [line for line in bytes(text.tolist()).decode().splitlines() if line.startswith("def")]


LENGTH = 4
WINDOWS = Windows(torch.arange(4 * 24 + 1, dtype=torch.uint8), LENGTH, "training")


def firsts(feed: Feed, start: int, steps: int) -> list[int]:
    """The first byte of every sequence of some steps: it tells which window it is."""
    return [int(w[0]) for batch in islice(feed.starting_at(start), steps) for w in batch]


def test_the_ranks_share_out_an_epoch():
    feeds = [Feed(WINDOWS, 2, rank, 3, seed=5) for rank in range(3)]
    seen = [w for feed in feeds for w in firsts(feed, 0, feed.steps_per_epoch)]
    assert sorted(seen) == [LENGTH * i for i in range(24)]


def test_epochs_are_in_different_orders_of_the_same_windows():
    feed = Feed(WINDOWS, 2, 0, 1, seed=5)
    steps = feed.steps_per_epoch
    first, second = firsts(feed, 0, steps), firsts(feed, steps, steps)
    assert first != second
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("start", [0, 1, 11, 12, 13, 30])
def test_starting_late_is_the_same_as_having_run(start):
    feed = Feed(WINDOWS, 2, 0, 1, seed=5)
    assert firsts(feed, start, 5) == firsts(feed, 0, start + 5)[2 * start :]


def test_the_global_rng_is_not_touched():
    state = torch.get_rng_state()
    firsts(Feed(WINDOWS, 2, 0, 1, seed=5), 0, 30)
    assert torch.equal(torch.get_rng_state(), state)


def test_less_than_a_batch_for_every_rank_is_refused():
    with pytest.raises(ValueError, match="24 training sequences are not one batch of 7 for each of 4 ranks"):
        Feed(WINDOWS, 7, 0, 4, seed=5)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("kind", "cls"), [("ringdp", ringdp.DistributedDataParallel), ("stock", Stock)])
def test_each_kind_is_its_class_with_views(kind, cls):
    wrapped = data_parallel(nn.Linear(2, 2), kind)
    assert type(wrapped) is cls and wrapped.gradient_as_bucket_view


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_optimizer_fits_the_stage(stage):
    cls = ringdp.ZeroOptimizer if stage else torch.optim.AdamW
    assert type(adamw(data_parallel(nn.Linear(2, 3), "ringdp", zero_stage=stage), 0.1, stage)) is cls


def test_every_kind_and_stage_has_a_name():
    assert len({name_of(kind) for kind in KINDS} | {name_of("ringdp", stage) for stage in (1, 2, 3)}) == 5


@pytest.mark.parametrize(("steps", "warm_up"), [(1, 1), (10, 1), (100, 5), (400, 20), (1000, 50)])
def test_warm_up_is_five_percent_and_at_least_one_step(steps, warm_up):
    assert warm_up_steps(steps) == warm_up


@pytest.mark.parametrize("world", [1, 2, 8])
def test_the_peak_is_the_linear_rule(world):
    rates = [learning_rate(step, 400, 3e-4, world) for step in range(400)]
    assert max(rates) == pytest.approx(3e-4 * world, rel=1e-12)
    assert rates.index(max(rates)) == 19


def test_warm_up_is_linear_and_starts_above_zero():
    rates = [learning_rate(step, 400, 1.0, 1) for step in range(20)]
    assert rates == pytest.approx([(step + 1) / 20 for step in range(20)], rel=1e-12)


def test_after_the_peak_it_only_falls_to_a_tenth():
    rates = [learning_rate(step, 400, 1.0, 1) for step in range(19, 400)]
    assert all(later <= earlier for earlier, later in pairwise(rates))
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)


def test_every_group_takes_the_rate():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    set_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
