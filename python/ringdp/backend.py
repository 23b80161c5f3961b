"""What torch calls to make a ringdp process group: the creator, its options, and their Python face."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch

from ringdp import _native, last_words
from ringdp.tools.tune import cache

_C = _native.load()


class Options(_C.Options):
    """Settings of one process group, for ``pg_options=``.

    Keyword arguments and attributes are the fields that ``ringdp info`` lists (``transport``, ``algorithm``, ``order``,
    ...); they take precedence over the environment. An unknown field or a bad value raises ``DistBackendError``, which
    names the accepted ones.
    """

    def __init__(self, timeout: timedelta = timedelta(minutes=30), **fields: object) -> None:
        super().__init__(timeout)
        for field, value in fields.items():
            self.set(field, str(value))

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(_C.Options, name):  # torch's own
            super().__setattr__(name, value)
        else:
            self.set(name, str(value))

    def __getattr__(self, name: str) -> str:
        try:
            return self.get(name)
        except torch.distributed.DistBackendError as error:
            raise AttributeError(str(error)) from None


def as_options(given: object) -> Any:
    """``pg_options`` as users write it: None, a mapping of fields, or ``ringdp.Options``."""
    if given is None:
        return Options()
    if isinstance(given, Mapping):
        return Options(**given)
    if isinstance(given, _C.Options):
        return given.__copy__()
    raise TypeError(f"pg_options for ringdp must be ringdp.Options or a dict of its fields, not {type(given).__name__}")


def create_backend(dist_opts: Any, pg_options: object) -> Any:
    """The extended creator of ``Backend.register_backend``; collective over the group's ranks."""
    try:
        options = as_options(pg_options)
        for field, value in cache.load().items():
            options.set_tuned(field, str(value))
        options._timeout = dist_opts.timeout
        options.global_ranks_in_group = list(dist_opts.global_ranks_in_group)
        options.group_name = dist_opts.group_id
        if os.environ.get("RINGDP_PROMETHEUS_PORT"):
            from ringdp.tools.observe.prometheus import serve_if_asked

            serve_if_asked()
    except Exception as error:
        _C.Backend.decline(dist_opts.store, dist_opts.group_rank, dist_opts.group_size, str(error))
        raise
    last_words.tell_of_child()
    return _C.Backend(dist_opts.store, dist_opts.group_rank, dist_opts.group_size, dist_opts.group_id, options)


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """A barrier that names missing ranks, as `torch.distributed.monitored_barrier` does for gloo only.

    Collective over `group` (default: the world). After `timeout` (default: the group's) the ranks that have called
    raise a DistBackendError that names the first rank that has not, or with `wait_all_ranks` all such ranks. The group
    can then no longer be used, as after any other error.
    """
    import torch.distributed as dist

    group = dist.group.WORLD if group is None else group
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return
    limit = timeout if timeout is not None else group._get_backend(torch.device("cpu")).options._timeout
    group.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)


# Peers of a process that ends without destroy_process_group get a goodbye instead of a lost connection.
atexit.register(_C.leave_all)
