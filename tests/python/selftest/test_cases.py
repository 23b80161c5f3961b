"""ringdp/selftest/cases.py: the list is complete."""

from __future__ import annotations

from ringdp.selftest.cases import FAMILIES, OPS, Case, cases_of
from ringdp.selftest.meaning import COLUMNS, REDUCE_OPS


def test_every_op_meets_every_dtype_and_reduce_op_once():
    cases = cases_of(FAMILIES, 2)
    assert len(set(cases)) == len(cases)
    for name, op in OPS.items():
        count = len(COLUMNS) * (len(REDUCE_OPS) if op.reduces else 1) if op.typed else 1
        assert sum(case.op == name for case in cases) == count


def test_a_family_is_all_forms_of_one_op():
    assert {case.op for case in cases_of(["all_to_all"], 2)} == {"all_to_all", "all_to_all flat", "all_to_all splits"}


def test_one_rank_has_nobody_to_send_to():
    assert cases_of(["send/recv"], 1) == []
    assert cases_of(["send/recv"], 2)


def test_meaning_and_name():
    assert Case("barrier").meaningful and Case("gather", "float8_e5m2").meaningful
    assert not Case("reduce", "int32", "PREMUL_SUM").meaningful
    assert str(Case("reduce", "int32", "AVG")) == "reduce int32 AVG"
