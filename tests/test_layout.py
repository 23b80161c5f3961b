"""The repository keeps the rules of its layout, and every rule fails on a tree that breaks it."""

from __future__ import annotations

from pathlib import Path

import layout_rules as rules
import pytest

ROOT = Path(__file__).resolve().parent.parent

PADDING = "// a line\n" * rules.MIN_LINES
ENV_TABLE = '#include "base/settings.h"\nconst char* row = "RINGDP_LOG";\nauto v = getenv("X");\n'
GOOD_TREE = {
    "csrc/base/settings.h": "#pragma once\n" + PADDING,
    "csrc/base/settings.cc": ENV_TABLE + PADDING,
    "csrc/kernels/dispatch.cc": '#include <vector>\n#include "base/settings.h"\n#if defined(__x86_64__)\n#endif\n'
    + PADDING,
    "csrc/backend/work.cc": '#include <torch/version.h>\n#include "base/settings.h"\n// getenv is elsewhere\n'
    + PADDING,
    "csrc/bindings/module.cc": "#include <torch/extension.h>\n" + PADDING,
    "csrc/device/kernel/run.h": '#include "base/settings.h"\n' + PADDING,
    "csrc/device/cuda/sum.cu": '#include <cuda_runtime.h>\n#include "device/kernel/run.h"\n' + PADDING,
    "csrc/kernels/fold_avx2.cc": "// one line\n",
    "csrc/device/cuda/float32.cu": "// one line\n",
    "csrc/README.md": "`base/settings.h`, `csrc/base/`, `and/or`, [the switch](kernels/dispatch.cc)\n",
    "python/ringdp/__init__.py": "",
    "python/ringdp/_register.py": 'name = "RINGDP_LOG"\n',
    "python/ringdp/cli/info.py": "",
    "tests/python/test_register.py": "",
    "README.md": "`csrc/base/settings.cc` [map](csrc/README.md) [site](https://example.org/x) RINGDP_LOG\n",
    "docs/index.md": "`docs/index.md` [map](../csrc/README.md) RINGDP_LOG\n",
    "setup.py": 'define_macros=[("RINGDP_TORCH_VERSION", "2")]\n',
}
# rule, file, its new text (None: the file is missing), what the sentence must name
BREAKS = [
    (rules.includes, "csrc/base/settings.cc", '#include "kernels/fold.h"\n', "kernels/fold.h"),
    (rules.includes, "csrc/base/settings.h", '#include "settings.cc"\n', "not a path relative to csrc/"),
    (rules.includes, "csrc/base/settings.cc", '#include "kernels/dispatch.cc"\n', "may not include"),
    (rules.includes, "csrc/kernels/dispatch.cc", "#include <torch/torch.h>\n", "torch line"),
    (rules.includes, "csrc/kernels/dispatch.cc", "#include <ATen/ATen.h>\n", "torch line"),
    (rules.includes, "csrc/kernels/dispatch.cc", "#  include <Python.h>\n", "torch line"),
    (rules.includes, "csrc/kernels/dispatch.cc", '#include "pybind11/pybind11.h"\n', "torch line"),
    (rules.includes, "csrc/kernels/dispatch.cc", "#include <c10/util/Half.h>\n", "torch line"),
    (rules.includes, "csrc/device/cuda/sum.cu", '#include "backend/work.cc"\n', "may not include"),
    (rules.includes, "csrc/device/cuda/sum.cu", "#include <ATen/ATen.h>\n", "torch line"),
    (rules.includes, "csrc/misc/x.cc", "", "invalid module"),
    (rules.getenv, "csrc/kernels/dispatch.cc", 'auto v = std::getenv("X");\n', "kernels/dispatch.cc"),
    (rules.getenv, "csrc/backend/work.cc", 'auto v = secure_getenv("X");\n', "backend/work.cc"),
    (rules.feature_switches, "csrc/base/settings.h", "#ifdef __linux__\n#endif\n", "#ifdef __linux__"),
    (rules.feature_switches, "csrc/backend/work.cc", "  # if 1\n#endif\n", "backend/work.cc"),
    (rules.long_files, "csrc/base/settings.h", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.long_files, "csrc/device/cuda/sum.cu", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.long_files, "docs/generate_settings.py", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.long_files, "setup_cuda.py", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.long_files, "tests/python/test_register.py", "\n" * (rules.MAX_LINES + 1), "601 lines"),
    (rules.short_files, "csrc/kernels/copy.h", "#pragma once\n", "csrc/kernels/copy: 1 lines"),
    (rules.documented_paths, "README.md", "`csrc/base/gone.h`", "csrc/base/gone.h"),
    (rules.documented_paths, "README.md", "[x](docs/gone.md)", "docs/gone.md"),
    (rules.documented_paths, "csrc/README.md", "`base/gone.h`", "base/gone.h"),
    (rules.documented_paths, "csrc/device/README.md", "`base/gone.h`, `base/settings.h`", "base/gone.h"),
    (rules.documented_paths, "CONTRIBUTING.md", "`csrc/base/gone.h`", "csrc/base/gone.h"),
    (rules.documented_paths, "docs/index.md", "[x](../csrc/gone.md)", "csrc/gone.md"),
    (rules.known_variables, "python/ringdp/_register.py", 'x = "RINGDP_NEW"', "RINGDP_NEW"),
    (rules.known_variables, "README.md", "set `RINGDP_NEW=1`", "RINGDP_NEW"),
    (rules.known_variables, "docs/index.md", "set `RINGDP_NEW=1`", "RINGDP_NEW"),
    (rules.known_variables, "csrc/device/cuda/sum.cu", "// RINGDP_NEW", "RINGDP_NEW"),
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
