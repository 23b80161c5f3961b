"""The house keeps its rules - and every rule fails on a tree that breaks it."""

from __future__ import annotations

from pathlib import Path

import layout_rules as rules
import pytest

ROOT = Path(__file__).resolve().parent.parent

ENV_TABLE = '#include "base/env.h"\nconst char* row = "RINGDP_LOG";\nauto v = getenv("X");\n'
GOOD_TREE = {
    "csrc/base/env.h": "#pragma once\n",
    "csrc/base/env.cc": ENV_TABLE,
    "csrc/kernels/dispatch.cc": '#include <vector>\n#include "base/env.h"\n#if defined(__x86_64__)\n#endif\n',
    "csrc/backend/work.cc": '#include <torch/version.h>\n#include "base/env.h"\n// getenv is elsewhere\n',
    "csrc/bindings/module.cc": "#include <torch/extension.h>\n",
    "csrc/gpu/device/run.h": '#include "base/env.h"\n',
    "csrc/gpu/cuda/sum.cu": '#include <cuda_runtime.h>\n#include "gpu/device/run.h"\n',
    "csrc/README.md": "`base/env.h`, `csrc/base/`, `and/or`, [the switch](kernels/dispatch.cc)\n",
    "python/ringdp/__init__.py": "",
    "python/ringdp/_register.py": 'name = "RINGDP_LOG"\n',
    "python/ringdp/cli/info.py": "",
    "tests/python/test_register.py": "",
    "README.md": "`csrc/base/env.cc` [map](csrc/README.md) [site](https://example.org/x) RINGDP_LOG\n",
    "docs/index.md": "`docs/index.md` [map](../csrc/README.md) RINGDP_LOG\n",
    "setup.py": 'define_macros=[("RINGDP_TORCH_VERSION", "2")]\n',
}
# rule, file, its new text (None: the file is missing), what the sentence must name
BREAKS = [
    (rules.includes, "csrc/base/env.cc", '#include "kernels/fold.h"\n', "kernels/fold.h"),
    (rules.includes, "csrc/base/env.h", '#include "env.cc"\n', "no path relative to csrc/"),
    (rules.includes, "csrc/base/env.cc", '#include "kernels/dispatch.cc"\n', "may not include"),
    (rules.includes, "csrc/kernels/dispatch.cc", "#include <torch/torch.h>\n", "torch line"),
    (rules.includes, "csrc/kernels/dispatch.cc", "#include <ATen/ATen.h>\n", "torch line"),
    (rules.includes, "csrc/kernels/dispatch.cc", "#  include <Python.h>\n", "torch line"),
    (rules.includes, "csrc/kernels/dispatch.cc", '#include "pybind11/pybind11.h"\n', "torch line"),
    (rules.includes, "csrc/kernels/dispatch.cc", "#include <c10/util/Half.h>\n", "torch line"),
    (rules.includes, "csrc/gpu/cuda/sum.cu", '#include "backend/work.cc"\n', "may not include"),
    (rules.includes, "csrc/gpu/cuda/sum.cu", "#include <ATen/ATen.h>\n", "torch line"),
    (rules.includes, "csrc/misc/x.cc", "", "no room"),
    (rules.getenv, "csrc/kernels/dispatch.cc", 'auto v = std::getenv("X");\n', "kernels/dispatch.cc"),
    (rules.getenv, "csrc/backend/work.cc", 'auto v = secure_getenv("X");\n', "backend/work.cc"),
    (rules.feature_switches, "csrc/base/env.h", "#ifdef __linux__\n#endif\n", "#ifdef __linux__"),
    (rules.feature_switches, "csrc/backend/work.cc", "  # if 1\n#endif\n", "backend/work.cc"),
    (rules.small_files, "csrc/base/env.h", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.small_files, "csrc/gpu/cuda/sum.cu", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.small_files, "docs/generate_settings.py", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.small_files, "setup_cuda.py", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.small_files, "tests/python/test_register.py", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.documented_paths, "README.md", "`csrc/base/gone.h`", "csrc/base/gone.h"),
    (rules.documented_paths, "README.md", "[x](docs/gone.md)", "docs/gone.md"),
    (rules.documented_paths, "csrc/README.md", "`base/gone.h`", "base/gone.h"),
    (rules.documented_paths, "csrc/gpu/README.md", "`base/gone.h`, `base/env.h`", "base/gone.h"),
    (rules.documented_paths, "CONTRIBUTING.md", "`csrc/base/gone.h`", "csrc/base/gone.h"),
    (rules.documented_paths, "docs/index.md", "[x](../csrc/gone.md)", "csrc/gone.md"),
    (rules.known_variables, "python/ringdp/_register.py", 'x = "RINGDP_NEW"', "RINGDP_NEW"),
    (rules.known_variables, "README.md", "set `RINGDP_NEW=1`", "RINGDP_NEW"),
    (rules.known_variables, "docs/index.md", "set `RINGDP_NEW=1`", "RINGDP_NEW"),
    (rules.known_variables, "csrc/gpu/cuda/sum.cu", "// RINGDP_NEW", "RINGDP_NEW"),
    (rules.known_variables, "setup_cuda.py", 'x = "RINGDP_NEW"', "RINGDP_NEW"),
    (rules.known_variables, "csrc/kernels/dispatch.cc", 'read_env("RINGDP_NEW")', "RINGDP_NEW"),
]


def plant(root: Path, tree: dict[str, str]) -> None:
    """Writes a small repository."""
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_this_repository_keeps_the_rule(rule):
    assert "\n".join(rule(ROOT)) == ""


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_good_tree_is_accepted(rule, tmp_path):
    plant(tmp_path, GOOD_TREE)
    assert "\n".join(rule(tmp_path)) == ""


@pytest.mark.parametrize(("rule", "name", "text", "named"), BREAKS, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_tree_is_refused(rule, name, text, named, tmp_path):
    plant(tmp_path, GOOD_TREE)
    if text is None:
        (tmp_path / name).unlink()
    else:
        plant(tmp_path, {name: text})
    sentences = list(rule(tmp_path))
    assert len(sentences) == 1, sentences
    assert named in sentences[0]


def test_every_rule_has_a_tree_that_breaks_it():
    assert {rule for rule, *_ in BREAKS} == set(rules.RULES)
