"""Names that stand for numbers, against what their shapes say."""

import pytest
from ringdp.tools.planner import presets
from ringdp.tools.planner.units import UnitError


@pytest.mark.parametrize("model", presets.MODELS.values(), ids=presets.MODELS)
def test_a_model_s_shape_makes_about_its_parameters(model):
    assert 0.6 <= 12 * model.layers * model.hidden**2 / model.params <= 1.5
    assert model.hidden % model.heads == 0 and model.largest_unit < model.params / 2


def test_names_and_numbers():
    assert presets.peak_tflops("h100") == presets.peak_tflops("989") == presets.device("h100").bf16_tflops
    assert presets.device_gigabytes("a100") == presets.device_gigabytes("80GB") == 80
    assert presets.model("llama-70b").params == 70e9


@pytest.mark.parametrize("parse", [presets.peak_tflops, presets.device_gigabytes, presets.device])
def test_unknown_names_list_the_known_ones(parse):
    with pytest.raises(UnitError, match=r"'h101'.*v100, a100-40"):
        parse("h101")


def test_an_unknown_model_says_what_else():
    with pytest.raises(UnitError, match="or give --params"):
        presets.model("gpt9")
