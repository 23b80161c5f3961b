"""setup_cuda.py: which nvcc builds the CUDA part, and what is said where none does. Nothing is compiled here."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def module_of(file: str) -> ModuleType:
    """A file next to setup.py as a module."""
    spec = importlib.util.spec_from_file_location(f"{Path(file).stem}_under_test", ROOT / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cuda() -> ModuleType:
    """setup_cuda.py."""
    return module_of("setup_cuda.py")


@pytest.fixture(autouse=True)
def bare(cuda, monkeypatch):
    """No nvcc anywhere, and no choice made."""
    for name in ("CUDA_HOME", "RINGDP_CUDA", "RINGDP_CUDA_ARCHS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cuda, "_in_packages", lambda: None)
    cuda.devices_here.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")


def plant_nvcc(folder: Path, release: str = "13.0") -> Path:
    """A script that says what nvcc of a release says, and links by making a file."""
    nvcc = folder / "bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && echo "Cuda compilation tools, release {release}, V{release}.88" && exit\n'
        'while [ "$1" != -o ]; do shift; done; echo linked > "$2"\n'
    )
    nvcc.chmod(0o755)
    return nvcc


class Compiler:
    """In place of setup.py's compile_objects."""

    def __init__(self) -> None:
        self.calls = []

    def __call__(self, name, key, files, command):
        self.calls.append([command(file) for file in files])
        return []


def test_a_value_that_is_none_is_refused(cuda, monkeypatch):
    monkeypatch.setenv("RINGDP_CUDA", "yes")
    with pytest.raises(SystemExit, match=r"invalid value 'yes' for RINGDP_CUDA \(expected one of: auto, on, off\)"):
        cuda.choice()


def test_cuda_home_goes_before_the_path_and_that_before_packages(cuda, monkeypatch, tmp_path):
    home, path, package = (plant_nvcc(tmp_path / name) for name in ("home", "path", "package"))
    assert cuda.find_nvcc() is None
    monkeypatch.setattr(cuda, "_in_packages", lambda: package)
    assert cuda.find_nvcc() == package
    monkeypatch.setenv("PATH", str(path.parent))
    assert cuda.find_nvcc() == path
    monkeypatch.setenv("CUDA_HOME", str(home.parent.parent))
    assert cuda.find_nvcc() == home
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert cuda.find_nvcc() is None


@pytest.mark.parametrize(("chosen", "why"), [("auto", "no nvcc"), ("off", "RINGDP_CUDA=off")])
def test_without_it_one_line_says_why_and_nothing_stale_stays(cuda, monkeypatch, tmp_path, chosen, why):
    monkeypatch.setenv("RINGDP_CUDA", chosen)
    (tmp_path / cuda.LIBRARY).touch()
    lines = []
    assert cuda.build(tmp_path, lines.append, Compiler()) is None
    assert len(lines) == 1 and lines[0].startswith("CUDA part skipped: ") and why in lines[0]
    assert not (tmp_path / cuda.LIBRARY).exists()


def test_off_asks_no_nvcc(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("RINGDP_CUDA", "off")
    monkeypatch.setenv("CUDA_HOME", str(plant_nvcc(tmp_path / "home").parent.parent))
    compiler = Compiler()
    assert cuda.build(tmp_path, lambda _: None, compiler) is None
    assert compiler.calls == []


def test_on_without_it_is_an_error_that_names_both_ways_out(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("RINGDP_CUDA", "on")
    with pytest.raises(SystemExit, match=r"RINGDP_CUDA=on: no nvcc .*pip install nvidia-.*RINGDP_CUDA=off"):
        cuda.build(tmp_path, print, Compiler())


@pytest.mark.parametrize(("release", "fits"), [("13.0", True), ("12.8", True), ("12.6", False), ("9.2", False)])
def test_the_release_must_know_every_architecture(cuda, tmp_path, release, fits):
    why = cuda.unfit(plant_nvcc(tmp_path, release))
    assert (why is None) == fits
    assert fits or f"CUDA {release}" in why


def test_every_file_is_compiled_for_what_is_asked_and_linked(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(plant_nvcc(tmp_path / "home").parent.parent))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    compiler = Compiler()
    assert cuda.build(tmp_path, print, compiler) == "13.0"
    assert (tmp_path / cuda.LIBRARY).read_text() == "linked\n"
    commands = compiler.calls[0]
    assert all(
        "arch=compute_80,code=[sm_80,compute_80]" in command and "-fmad=false" in command for command in commands
    )
    assert {Path(command[-1]).suffix for command in commands} == {".cc", ".cu"}


def plant_smi(folder: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script in place of nvidia-smi."""
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("asked", "there", "chosen"),
    [
        ("auto", "", ("80",)),
        ("auto", "9.0\\n8.0\\n9.0\\n", ("80", "90")),
        ("auto", "12.0\\n", ("120",)),
        ("auto", "7.5\\n", ("80",)),
        ("auto", "No devices were found\\n", ("80",)),
        ("all", "9.0\\n", ("80", "90", "100")),
        ("90", "", ("90",)),
        ("100;90", "", ("90", "100")),
        ("90, 80", "", ("80", "90")),
    ],
)
def test_kernels_are_compiled_for_what_is_here_or_asked(cuda, monkeypatch, tmp_path, asked, there, chosen):
    monkeypatch.setenv("RINGDP_CUDA_ARCHS", asked)
    plant_smi(tmp_path, there, monkeypatch)
    assert cuda.architectures() == chosen
    options = cuda.code_of(chosen)
    assert options[-1] == f"arch=compute_{chosen[-1]},code=[sm_{chosen[-1]},compute_{chosen[-1]}]"
    assert options.count("-gencode") == len(chosen)


@pytest.mark.parametrize("asked", ["sm_90", "9.0", "75", "every", ";"])
def test_an_architecture_that_is_none_is_refused(cuda, monkeypatch, asked):
    monkeypatch.setenv("RINGDP_CUDA_ARCHS", asked)
    with pytest.raises(SystemExit, match=f"invalid value '{asked}' for RINGDP_CUDA_ARCHS"):
        cuda.architectures()


@pytest.mark.parametrize("colon", [":", " :"])
def test_what_depends_on_a_newer_file_is_compiled_again(tmp_path, monkeypatch, colon):
    setup = module_of("setup.py")  # g++ and nvcc spell the colon of a dependency file differently
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    header, output = tmp_path / "a.h", tmp_path / "a.o"
    output.with_suffix(".d").write_text(f"{output}{colon} \\\n a.h\n")
    for file, time in ((header, 1), (output, 2)):
        file.touch()
        os.utime(file, (time, time))
    assert setup.is_current(output)
    os.utime(header, (3, 3))
    assert not setup.is_current(output)
    header.unlink()
    assert not setup.is_current(output)


def test_the_extra_has_what_the_error_names(cuda):
    text = (ROOT / "pyproject.toml").read_text()
    extra = text[text.index("cuda-build = [") :].split("]")[0]
    assert [line.strip(' ",') for line in extra.splitlines()[1:]] == [f"{name}==13.*" for name in cuda.PACKAGES]
