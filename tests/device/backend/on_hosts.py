"""Worlds of ranks on several hosts: network namespaces of this machine, which ranks enter before they join."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from ranks import HERE, World
from ringdp.tools.netns.namespaces import Network

CLONE_NEWNET = 0x40000000


def world_on(stack: ExitStack, sizes: Sequence[int], **settings: object) -> World:
    """A joined world of `sizes[h]` ranks on host h, numbered host by host; it ends with the stack."""
    network = stack.enter_context(Network(len(sizes)))
    places = [host.namespace for host, size in zip(network.hosts, sizes, strict=True) for _ in range(size)]
    world = stack.enter_context(World(len(places), **settings))
    world.run(join_from, places, world.folder.name)
    return world


def join_from(places: list[str], folder: str) -> None:
    """On a rank: goes to its host and makes the default group. The store's connection stays where it was made; the
    stand-in of NCCL meets in the folder.
    """
    os.environ["STAND_IN_NCCL_FOLDER"] = folder
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False, timeout=timedelta(seconds=30))
    _enter(places[HERE.rank])
    timeout = timedelta(seconds=60)
    dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=HERE.size, timeout=timeout)


def _enter(namespace: str) -> None:
    """This thread, and those that it starts."""
    with Path("/var/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
