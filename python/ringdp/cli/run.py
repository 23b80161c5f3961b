"""`ringdp run [--as gloo] [--min-ranks 1] --nproc-per-node 2 train.py`: torchrun, with ringdp in each of its ranks."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from ringdp import backend_choice
from ringdp.cli import worker
from ringdp.cli.arguments import positive

_DESCRIPTION = """torchrun with ringdp in every rank. All of torchrun's arguments are accepted; --as, which makes ringdp
the backend of a program that does not name it; and --min-ranks, with which training goes on when ranks die
(ringdp.elastic.survive and survive_local)."""
SUPERVISOR = "ringdp.elastic.supervisor"
_MASTER_PORT = 29500  # torchrun's, where none is given
_STORE_PORT = 29400  # torchrun's for c10d, where the endpoint has none
_EXAMPLE = """example: ringdp run --as gloo --nproc-per-node 2 train.py
status: torchrun's; 2 where a value is wrong"""


def add_command(commands: Any) -> None:
    """Adds `run` to argparse's sub-commands: for the help, as torchrun's own parser reads its arguments."""
    commands.add_parser("run", add_help=False, help="torchrun, whose programs need not name ringdp")


def run(options: argparse.Namespace) -> int:
    """See the status in the command's help; argparse ends the process with 2, torchrun by an exception."""
    try:
        from torch.distributed import run as torchrun
        from torch.distributed.elastic.multiprocessing.errors import record

        arguments = parser().parse_args(options.arguments)
        _choose(arguments.choice)
        _check_script(arguments)
        if not _torch_loads_ringdp():
            _start_by_worker(arguments)
        if arguments.min_ranks is not None:
            _start_by_supervisor(arguments, torchrun.determine_local_world_size(arguments.nproc_per_node))
        elif arguments.host_timeout is not None:
            raise ValueError("--host-timeout without --min-ranks: torchrun does not go on without a host")
    except (ValueError, ImportError) as error:
        print(f"ringdp run: {error}", file=sys.stderr)
        return 2
    record(torchrun.run)(arguments)
    return 0


def parser() -> argparse.ArgumentParser:
    """torchrun's, with --as. ImportError where there is no torch, or none with torch.distributed."""
    from torch.distributed import run as torchrun

    parser = torchrun.get_args_parser()
    parser.prog = "ringdp run"
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--as",
        dest="choice",
        type=_choice,
        metavar="|".join(backend_choice.CHOICES),
        help="gloo: ringdp is meant where the program says gloo; cpu-default: where it names no backend and runs on "
        f"the CPU. Sets {backend_choice.VARIABLE} for the ranks",
    )
    parser.add_argument(
        "--min-ranks",
        type=positive(int),
        metavar="N",
        help="a rank that dies does not end the job while N are left or can be replaced: --max-restarts is the number "
        "of replacements of each host then, one process each. For programs that train by ringdp.elastic.survive or "
        "survive_local",
    )
    parser.add_argument(
        "--host-timeout",
        type=positive(float),
        metavar="S",
        help="with --min-ranks and several hosts: one of which nothing was heard for S seconds is lost, and the others "
        "go on (default 5)",
    )
    return parser


def _choice(text: str) -> str:
    try:
        return backend_choice.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).replace(f" for {backend_choice.VARIABLE}", "")) from None


def _choose(given: str | None) -> None:
    """Ranks inherit the environment. The argument outranks it, as everywhere."""
    exported = os.environ.get(backend_choice.VARIABLE)
    if given:
        if exported and exported != given:
            print(f"ringdp run: --as {given} replaces {backend_choice.VARIABLE}={exported}", file=sys.stderr)
        os.environ[backend_choice.VARIABLE] = given
    backend_choice.from_environment()


def _check_script(arguments: argparse.Namespace) -> None:
    script = Path(arguments.training_script)
    if script.name == "torchrun" and not arguments.module and not script.exists():
        raise ValueError(
            "this command takes torchrun's place: ringdp run --nproc-per-node 2 train.py (for programs that call "
            f"torchrun themselves, set {backend_choice.VARIABLE} instead)"
        )


def _torch_loads_ringdp() -> bool:
    """Whether `import torch` calls ringdp's entry point in the ranks."""
    allowed = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    return allowed and any(point.name == "ringdp" for point in metadata.entry_points(group="torch.backends"))


def _start_by_supervisor(arguments: argparse.Namespace, ranks: int) -> None:
    """torchrun starts one process, which starts the ranks. ValueError names what does not go with that."""
    from torch.distributed import run as torchrun

    try:
        hosts = torchrun.parse_min_max_nnodes(arguments.nnodes)
    except (RuntimeError, ValueError):
        hosts = (0, 0)
    if not 1 <= hosts[0] <= hosts[1]:
        raise ValueError(f"--nnodes {arguments.nnodes}, must be N or LEAST:MOST")
    if hosts[1] == 1 and arguments.host_timeout is not None:
        raise ValueError(f"--host-timeout {arguments.host_timeout:g} with --nnodes 1: there is no other host")
    if arguments.min_ranks > ranks * hosts[0]:  # with which the training begins
        on_hosts = f" on {hosts[0]} hosts" if hosts[1] > 1 else ""
        raise ValueError(f"--min-ranks {arguments.min_ranks} with --nproc-per-node {ranks}{on_hosts}, which are fewer")
    for option in ("no_python", "run_path", "local_ranks_filter", "numa_binding", "virtual_local_rank"):
        if value := getattr(arguments, option, None):
            given = f"--{option.replace('_', '-')}" + ("" if value is True else f" {value}")
            raise ValueError(f"--min-ranks with {given}: torchrun does not start the ranks then; leave one of them out")
    script = ["-m"] * arguments.module + [arguments.training_script, *arguments.training_script_args]
    numbers = [ranks, arguments.min_ranks, arguments.max_restarts]
    options = _options_of_hosts(arguments, hosts) if hosts[1] > 1 else []
    arguments.training_script_args = [*options, *map(str, numbers), sys.executable, "-u", *script]
    arguments.training_script, arguments.module = SUPERVISOR, True
    arguments.nproc_per_node, arguments.max_restarts = "1", 0


def _options_of_hosts(arguments: argparse.Namespace, hosts: tuple[int, int]) -> list[str]:
    """For the supervisor: where it meets the others. torchrun knows of this host only. ValueError."""
    from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config, parse_rendezvous_endpoint

    backend, endpoint = arguments.rdzv_backend, arguments.rdzv_endpoint
    if backend not in ("static", "c10d"):
        raise ValueError(f"--min-ranks with --rdzv-backend {backend}: several hosts meet by c10d or static")
    if arguments.standalone:
        raise ValueError(f"--standalone with --nnodes {arguments.nnodes}: leave one of them out")
    node_rank = arguments.node_rank if backend == "static" else None
    if endpoint:
        place = parse_rendezvous_endpoint(endpoint, default_port=_STORE_PORT)
    elif backend == "static":
        port = arguments.master_port
        place = arguments.master_addr.strip("[]"), _MASTER_PORT if port is None else port
    else:
        raise ValueError(f"--min-ranks with --nnodes {arguments.nnodes}: --rdzv-endpoint says where hosts meet")
    if not 0 < place[1] < 1 << 16:
        raise ValueError(f"port {place[1]} for the store of several hosts, must be from 1 to 65535")
    settings = _parse_rendezvous_config(arguments.rdzv_conf)
    join_timeout = settings.pop("join_timeout", None)
    if settings:
        raise ValueError(f"--min-ranks with --rdzv-conf {next(iter(settings))}: only join_timeout is understood")
    options = {
        "hosts": hosts,
        "endpoint": [f"{place[0]}:{place[1]}"],
        "id": [arguments.rdzv_id],
        "node-rank": [] if node_rank is None else [node_rank],
        "join-timeout": [] if join_timeout is None else [_seconds(join_timeout)],
        "host-timeout": [] if arguments.host_timeout is None else [arguments.host_timeout],
    }
    arguments.nnodes, arguments.standalone, arguments.node_rank = "1:1", True, 0
    arguments.rdzv_endpoint, arguments.rdzv_backend, arguments.rdzv_conf = "", "static", ""
    return [word for name, values in options.items() if values for word in (f"--{name}", *map(str, values))]


def _seconds(text: str) -> float:
    try:
        return positive(float)(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--rdzv-conf join_timeout={text}: {error}") from None


def _start_by_worker(arguments: argparse.Namespace) -> None:
    """Ranks run the script by ringdp.cli.worker. ValueError where torchrun would not start Python for them."""
    for option in ("no_python", "run_path"):
        if getattr(arguments, option):
            raise ValueError(
                f"--{option.replace('_', '-')} works only where torch loads ringdp by itself: ringdp must be installed "
                "(PYTHONPATH is not enough), and TORCH_DEVICE_BACKEND_AUTOLOAD must not be 0"
            )
    script = [arguments.training_script, *arguments.training_script_args]
    arguments.training_script_args = ["-m", *script] if arguments.module else script
    arguments.training_script, arguments.module = worker.__name__, True
