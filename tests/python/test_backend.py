"""The creator torch calls: pg_options in every form, defaults, and groups that nobody destroyed."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from types import SimpleNamespace

import pytest
import ringdp
from ringdp import _C, backend
from ringdp.backend import Options, as_options


class Fake:
    """Stands for a backend that connects to nobody."""

    def shutdown(self) -> None:
        """Called at exit."""


ALONE = """
import torch, torch.distributed as dist, ringdp
from datetime import timedelta
ringdp.register()
dist.init_process_group("ringdp", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=7))
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
x = torch.ones(3)
dist.all_reduce(x)
"""


def test_none_means_defaults():
    assert as_options(None).fields() == {}


def test_a_mapping_becomes_options():
    options = as_options({"algorithm": "ring", "segment_bytes": 4096})
    assert options.fields() == {"algorithm": "ring", "segment_bytes": "4096"}


def test_options_are_copied_so_that_groups_do_not_share_them():
    given = Options(algorithm="ring")
    taken = as_options(given)
    taken.set("algorithm", "direct")
    assert given.get("algorithm") == "ring"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_keep_fields_and_timeout(copied):
    other = copied(Options(timedelta(seconds=5), order="rotated"))
    assert other.fields() == {"order": "rotated"}
    assert other._timeout == timedelta(seconds=5)


@pytest.mark.parametrize("given", ["ring", 3, ["ring"]])
def test_anything_else_is_refused_by_its_type(given):
    with pytest.raises(TypeError, match=f"not {type(given).__name__}"):
        as_options(given)


def test_options_are_public():
    assert ringdp.Options is Options


def test_torchs_timeout_name_and_ranks_reach_the_backend(monkeypatch):
    seen = []
    pretended = SimpleNamespace(Backend=lambda *given: seen.append(given) or Fake(), Options=_C.Options)
    monkeypatch.setattr(backend, "_C", pretended)
    opts = SimpleNamespace(
        store="store",
        group_rank=1,
        group_size=3,
        group_id="name",
        timeout=timedelta(seconds=7),
        global_ranks_in_group=[4, 5, 6],
    )
    given = Options(timedelta(seconds=99), order="rotated")
    made = backend.create_backend(opts, given)
    assert isinstance(made, Fake)
    store, rank, size, name, options = seen[0]
    assert (store, rank, size, name) == ("store", 1, 3, "name")
    assert options._timeout == timedelta(seconds=7)
    assert list(options.global_ranks_in_group) == [4, 5, 6]
    assert options.fields() == {"order": "rotated"}
    assert given._timeout == timedelta(seconds=99), "the caller's options are his own"


def test_counters_and_description_of_a_group(run_warm):
    result = run_warm(
        ALONE + "import json; print(json.dumps([backend.counters(), backend.describe(), backend.name()]))"
    )
    counters, description, name = json.loads(result.stdout)
    assert counters["collectives"] == 1
    assert counters["wire_bytes_sent"] == 0
    assert description.startswith("plan: ")
    assert name == "ringdp"


def test_a_script_may_end_without_destroy(run_python):
    result = run_python(ALONE + "print('done')\n")
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
