"""One test per erratum, against the corrected figure or another way; every erratum is on the page with its number."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from ringdp.tools.planner import errata
from ringdp.tools.planner.question import InputError


def test_the_page_has_all_eighteen():
    answer = errata.errata(None)
    assert [figure.name for figure in answer.figures] == [f"E{number}" for number in range(1, 19)]
    assert not answer.warnings
    for erratum, row in zip(errata.ERRATA, answer.tables[0].rows, strict=True):
        assert row == (erratum.number, erratum.claimed, erratum.holds)
        assert answer[erratum.number]


def test_each_has_its_test():
    tested = re.findall(r"^def test_e(\d+)_", Path(__file__).read_text(), re.MULTILINE)
    assert {int(number) for number in tested} == set(range(1, 19))


def test_one_of_them():
    answer = errata.errata("E5")
    assert answer["E5"]["both_ways_seconds"] == pytest.approx(716.1, rel=1e-3)
    with pytest.raises(InputError, match=r"invalid value 'E19' for --number \(expected E1 to E18\)"):
        errata.errata("E19")


def test_what_cannot_be_computed_is_said(monkeypatch):
    def lacks():
        raise ImportError("No module named 'numpy'")

    monkeypatch.setattr(errata, "ERRATA", (errata.Erratum("E3", "a", "b", "c", lacks),))
    answer = errata.errata(None)
    assert answer["E3"] is None and answer.warnings == ("E3 is not computed here: No module named 'numpy'",)


FIRST = [100, 104, 108, 112]


def test_e1_a_ring_takes_fewer_elements_than_ranks():
    found = errata.short_gradient()
    assert found["results"] == [[60.0, 4.0]] * 4


def test_e2_the_receiver_adds_to_what_was_sent():
    found = errata.receiving_chunk()
    assert found == {"added_beside": [71, 53, 35, 53], "added_to_what_was_sent": FIRST}


def test_e3_only_the_same_data_gives_the_same_gradient():
    found = errata.same_data()
    assert found["mean_of_ranks"] == pytest.approx(found["same_data"], rel=1e-6)
    assert found["same_data"] == pytest.approx([-24.4438, -10.2058], rel=1e-5)
    assert found["drawn_again"] == pytest.approx([-36.92, -11.58], rel=1e-3)


def test_e4_rank_r_owns_the_next_chunk():
    assert errata.ownership()["owned"] == [[(r + 1) % 4, FIRST[(r + 1) % 4]] for r in range(4)]


def test_e5_minutes_not_an_hour():
    found = errata.server_seconds()
    assert found["one_way_seconds"] == pytest.approx(1023 * 140e9 / 400e9)
    assert found["both_ways_seconds"] == 2 * found["one_way_seconds"]
    assert found["both_ways_seconds"] < 3600 / 5


def test_e6_variance_falls_by_n():
    assert errata.variance_of_a_mean() == {"variance_falls_by": 4, "deviation_falls_by": 2.0}


def test_e7_parameters_cancel():
    found = errata.break_even_of_sizes()
    assert found["comm_over_compute_70M"] == pytest.approx(found["comm_over_compute_70B"])
    assert (found["whole_step"], found["backward_only"]) == pytest.approx((824, 1236), rel=1e-3)
    assert found["comm_over_compute_70B"] == pytest.approx(found["whole_step"] / 1024 * 1023 / 1024)


def test_e8_about_300_tensors():
    assert 280 <= errata.parameter_tensors()["tensors_of_llama_7b"] <= 320


def built(wrapper: str, widths: tuple[int, int]) -> tuple[str, list[float]]:
    """On a rank: a wrapper around a layer with values of the rank's own; (error, weights)."""
    import ringdp
    import torch.distributed as dist

    torch.manual_seed(5 + dist.get_rank())
    layer = torch.nn.Linear(2, widths[dist.get_rank()])
    wrappers = {"torch": torch.nn.parallel.DistributedDataParallel, "ringdp": ringdp.DistributedDataParallel}
    try:
        wrapped = wrappers[wrapper](layer)
    except RuntimeError as error:
        return str(error), []
    return "", wrapped.module.weight.flatten().tolist()


def test_e9_played_by_two_threads():
    assert errata.replicas_of_two() == {"other_values": "rank 0's: [0.0, 0.0, 0.0]", "other_shapes": "refused"}


@pytest.mark.parametrize("wrapper", ["torch", "ringdp"])
def test_e9_other_values_are_taken_from_rank_0(pair, wrapper):
    (error, first), (other_error, second) = pair.run(built, wrapper, (3, 3))
    assert error == other_error == ""
    torch.manual_seed(5)
    assert first == second == torch.nn.Linear(2, 3).weight.flatten().tolist()


def test_e9_other_shapes_are_refused_on_every_rank(pair):
    for error, _ in pair.run(built, "ringdp", (3, 4)):
        assert "weight" in error and "[3, 2]" in error and "[4, 2]" in error


def test_e10_eight_ports():
    assert errata.ports() == {"port_bytes_per_second": 50e9, "ports": 8}


def test_e11_the_step_returns_its_loss():
    assert errata.returned_loss() == {"kept": "NameError: name 'loss' is not defined", "returned": 0.25}


def test_e12_the_last_layers_come_first():
    assert sorted(errata.first_bucket()["layers"]) == [4, 5]


def test_e13_unequal_shards_need_weights():
    found = errata.unequal_means()
    assert found["weighted"] == found["mean"] == 4 != found["mean_of_means"]


def test_e14_masks_not_losses():
    found = errata.dropout_masks()
    deviation = math.sqrt(0.25 / 4096)
    assert found["same_seed"] == 1 and abs(found["seed_per_rank"] - 0.5) < 5 * deviation


def test_e15_the_wire_saves_twice_the_buffer():
    found = errata.fp8_saving()
    assert found["buffer_bytes"] == 70e9
    assert found["wire_bytes"] == pytest.approx(2 * 1023 / 1024 * 70e9)


def test_e16_elements_are_not_bytes():
    assert errata.bytes_of_elements() == {"elements": 2, "bf16_bytes": 4, "fp32_gradient_bytes": 6}


def test_e17_an_eighth_of_a_sequence():
    assert errata.part_of_a_sequence() == {"tokens_per_rank": 512, "sequences": 1 / 8, "possible": False}


def test_e18_micro_batches_multiply():
    found = errata.micro_batch_volume()
    assert (found["stage3_gathers"], found["stage2_reduce_scatters"]) == (2 * 4, 4)
    assert found["stage2_with_whole_gradients"] == "4P + 12P/N"


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_have_rank_0s_values(ranks):
    found = errata.built([torch.full((2, 3), float(rank + 1)) for rank in range(ranks)])
    assert all(torch.equal(taken, torch.ones(2, 3)) for taken in found)


def test_other_shapes_are_refused_where_they_are_other():
    _, refused = errata.built([torch.zeros(3), torch.zeros(4)])
    assert "sizes [4] appears not to match" in refused


def test_an_interface_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope0")
    with pytest.raises(ImportError, match=r"gloo does not start: .*nope0"):
        errata.built([torch.zeros(3), torch.zeros(3)])
