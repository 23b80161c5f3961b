"""`ringdp.DistributedDataParallel`: torch's class over ringdp's reducer; swap the name, keep the script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.autograd import Variable
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel as _Stock

from ringdp.compress.hook import Compression, cap_for, is_in_one_bucket
from ringdp.compress.ledger import Ledger
from ringdp.compress.methods import Auto, Method, PowerSGD, fixed, method_of
from ringdp.ddp import registrations, unaveraged
from ringdp.ddp.agreement import check_models
from ringdp.ddp.logger import Logger
from ringdp.ddp.modes import Modes, Order, check_arguments, complete_arguments
from ringdp.ddp.reducer import Reducer, mean_over
from ringdp.ddp.timeline import Explanation, StepTimes, explanation, step_times
from ringdp.ddp.weights import Weights
from ringdp.zero.refusals import refuse_copy
from ringdp.zero.sharding import Sharding


class DistributedDataParallel(Sharding, _Stock):
    """torch's DistributedDataParallel, with the bits of one process whatever the backend, buckets and overlap.

    Takes every argument of torch's class (those of the installed release) and eleven more:
        overlap: False launches buckets after the backward pass, one blocking collective each.
        order: "rank" (default), or "rotated" for the textbook ring's order, whose bits depend on the layout.
        zero_stage: 1 shards the optimizer's state, 2 gradients too, 3 parameters too. It changes memory, not results.
            From stage 1 on the parameters must be stepped by a `ringdp.ZeroOptimizer`; other optimizers are refused.
            From stage 2 on a backward pass leaves this rank's part of the gradients in `optimizer.shard_grads()`. .grad
            is then a tensor without memory: reading or changing it is an error, and setting it to None leaves the
            parameter out of the step. Clip with `ringdp.clip_grad_norm_`. The means of several synchronised passes
            without zero_grad() between them add up; at stages 0 and 1, as in torch, .grad is averaged again as a whole.
            Under no_sync() each rank keeps whole gradients until the next synchronised pass. At stage 3 the model is
            divided into units, each gathered for its forward and again for its backward pass; a parameter always has
            its shape, but values only while its unit is gathered (see `gathered()`). Gradients are reduced unit by unit
            there, so bucket_cap_mb has no effect. A model on the meta device is built unit by unit. torch.compile()
            does not compile the forward pass of stage 3.
        units: for stage 3: modules, or classes of modules, each of which becomes a unit; default: see zero/units.py.
        prefetch: for stage 3: False gathers a unit only when it is needed and no other one is in use.
        init: for stage 3: called with every module that has parameters or buffers of its own on the meta device, to set
            their values; default: the module's reset_parameters().
        check_drift: True compares the parameters of all ranks in every synchronised pass, by checksums that travel with
            the collectives of their gradients. If a bit flips in a parameter, in an optimizer's state or in an averaged
            gradient, every rank raises a RuntimeError in the next step that names step, rank, bucket and parameter; if
            a gradient changes between its bucket's launch and the sum, or the mean on its way to a rank, in the same
            step. Not checked: frozen parameters, buffers, sparse gradients and buckets of a communication hook. Needs
            parameters on the CPU and a group of backend ringdp. Reads all parameters and all means once per step, and
            all gradients twice.
        micro_batches: M makes the result independent of the number of ranks: a step has M micro-batches (leaves),
            summed along one fixed tree and divided once. Each is run inside `with ringdp.leaf(step, i):`, by any rank;
            optimizer.step(), or finish_step() before it, averages them and replaces .grad, also on ranks without a
            leaf. Buffers are those that leaf 0 leaves. Sums are sent during a rank's last leaf if it runs the leaves of
            the step before, else at the end (overlap=False: always). Refused with it: order="rotated", check_drift,
            static_graph, no_sync(), join() and communication hooks.
        shard_leaves: with micro_batches from stage 2 on: True sends the gradients of each leaf to the owners of their
            shards when the leaf ends, and nothing while it runs. A rank then holds one leaf's gradients and its shards
            of the sums, which are at most log2(M) + 1 if leaves are dealt out in turn, as by
            `ringdp.elastic.Leaves(..., in_rounds=True)`; every leaf is sent. The bits are the same. The end of a leaf
            is collective: the i-th leaves of all ranks end together, a rank with fewer waits in optimizer.step() or
            finish_step(), and so a program's own collectives between leaves must match. One wrapper per leaf.
        compress: "int8", "fp8", "sign", a `ringdp.PowerSGD` or a `ringdp.TopK` sends less than the gradients, and what
            is left out in the next steps; "auto:int8" or a `ringdp.compress.Auto` does so while that is faster. All
            ranks have the bits of one process that plays the ranks, by `ringdp.testing.one_process(ranks=N,
            compress=...)`, not of one that does not compress. `ledger()` says what it saves. Up to stage 2, on the CPU.
        grad_dtype: torch.float32 keeps the gradients of 16-bit parameters in float32; from stage 2 on.
    Gradients are summed in rank order and divided once; 16-bit ones in float32, rounded once. Buckets have their final
    size from the first step on, and are in shared memory if the backend offers it.

    Beyond torch's: `backward(loss_sum, weight=n)`, `explain()`, `times()`, `ledger()`, `drop_residuals()`, `memory()`,
    `full_state_dict()`, `gathers()`, `gathered()`, `abandon_backward()`, `finish_step()`. Collective: the constructor,
    forward in synchronised steps (at stage 3 in every one), backward.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *args: Any,
        overlap: bool = True,
        order: Order | None = None,
        zero_stage: int = 0,
        grad_dtype: torch.dtype | None = None,
        units: Sequence[torch.nn.Module | type] | None = None,
        prefetch: bool = True,
        check_drift: bool = False,
        micro_batches: int | None = None,
        shard_leaves: bool = False,
        compress: str | Method | None = None,
        init: Callable[[torch.nn.Module], object] | None = None,
        **kwargs: Any,
    ) -> None:
        """See the class. TypeError, ValueError or NotImplementedError names what is refused; nothing is changed."""
        self._modes = Modes(
            bool(overlap),
            order,
            zero_stage,
            grad_dtype,
            bool(prefetch),
            bool(check_drift),
            micro_batches,
            bool(shard_leaves),
            method_of(compress),
        )
        given = check_arguments(module, args, kwargs, self._modes)
        self._settings = [f"{name} {value}" for name, value in (*given.items(), *vars(self._modes).items())]
        if isinstance(fixed(self._modes.compress), PowerSGD):  # products of matrices may have other bits
            self._settings.append(f"torch.get_num_threads() {torch.get_num_threads()}")
        self._keeps_values = not given.get("init_sync", True)
        self._models_checked = False
        self._is_copy = False
        self._weights = Weights()
        self._compression: Compression | None = None
        self._live_ranks = 0
        self._delayed_mean: Any = None
        if zero_stage == 3:
            arguments = complete_arguments(module, args, kwargs)
            self._shard_parameters(module, arguments, self._settings, units, init)
            self._models_checked = True
            super().__init__(**{**arguments, "init_sync": False})
        elif units is not None or init is not None:
            name, value = ("units", units) if units is not None else ("init", init)
            raise ValueError(
                f"DistributedDataParallel: {name}={value!r} with zero_stage={zero_stage}: it is for stage 3"
            )
        else:
            super().__init__(module, *args, **cap_for(self._modes.compress, args, kwargs))
        if micro_batches is not None:  # forward passes communicate nothing
            self.require_backward_grad_sync = self.require_forward_param_sync = False

    def backward(self, loss: torch.Tensor | None, weight: float | None = None) -> None:
        """`loss.backward()`; with `weight`, the exact mean over samples also where ranks have unequal numbers of them.

        With a weight, `loss` is the SUM over this rank's `weight` samples (or tokens), and gradients are divided once
        by the sum of all ranks' weights since the last synchronised step. A rank without samples calls
        `backward(None, weight=0)`, with or without a forward pass. Either all ranks pass a weight or none does. Raises
        ValueError for a weight that is negative or not finite. With micro_batches the weights are those of leaves:
        either all leaves of a step have one, or none has.
        """
        if self._modes.micro_batches is not None:
            self.reducer.leaf_steps.backward(loss, weight)
        elif weight is not None:
            self._refuse_with_compression("backward(weight=...)", "residuals have no weights")
            self._weights.backward(self, loss, float(weight))
        elif loss is not None:
            loss.backward()
        else:
            raise ValueError("DistributedDataParallel.backward: no loss; a rank without samples passes weight=0")

    def finish_step(self) -> None:
        """With micro_batches: averages the leaves of this step and puts the means into .grad. Collective.

        optimizer.step() calls it, unless it was called since this rank's latest leaf. RuntimeError on all ranks if not
        every micro-batch was run once. ValueError without micro_batches.
        """
        if self._modes.micro_batches is None:
            raise ValueError("DistributedDataParallel.finish_step: it is for micro_batches=M")
        self.reducer.leaf_steps.finish()

    def _refuse_with_leaves(self, what: str) -> None:
        if self._modes.micro_batches is not None:
            raise NotImplementedError(
                f"DistributedDataParallel: {what} with micro_batches={self._modes.micro_batches}, where gradients are "
                "averaged once, by optimizer.step(): leave it out"
            )

    def _refuse_with_compression(self, what: str, why: str) -> None:
        if self._modes.compress is not None:
            raise NotImplementedError(f"DistributedDataParallel: {what} with compress={self._modes.compress}: {why}")

    def ledger(self) -> Ledger:
        """With compress: what the latest step with codes has saved and cost on this rank. ValueError without."""
        if self._compression is None:
            raise ValueError("DistributedDataParallel.ledger: it is for compress=...")
        return self._compression.ledger(self.times().exposed if self._compression.steps else 0.0)

    def drop_residuals(self) -> None:
        """With compress: what codes have left out so far is not sent any more. ValueError without.

        On all ranks, between two steps, where another state was loaded by hand: ringdp.checkpoint.load() loads the
        residuals that belong to its state.
        """
        if self._compression is None:
            raise ValueError("DistributedDataParallel.drop_residuals: it is for compress=...")
        self._compression.drop_residuals()

    def explain(self) -> Explanation:
        """The buckets with their parameters, bytes and memory, and the latest step's times. Print it."""
        return explanation(self.reducer, gradients_are_views=self.gradient_as_bucket_view, overlap=self._modes.overlap)

    def times(self) -> StepTimes:
        """When each bucket of the latest step was ready, launched and done; exposed communication; overlap."""
        return step_times(self.reducer.timeline())

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """As torch's: stock hooks run unchanged, also the bf16 ones on CPU tensors. Refused from stage 2 on."""
        self._refuse_with_leaves("a communication hook")
        self._refuse_with_compression("a communication hook", "it is one")
        if self.zero_stage >= 2:
            raise NotImplementedError(
                "DistributedDataParallel: a communication hook reduces whole buckets, and "
                f"zero_stage={self.zero_stage} keeps shards: use zero_stage=1 or leave the hook out"
            )
        self._check_comm_hook(hook)
        self.reducer.register_comm_hook(state, hook)
        self.logger._set_comm_hook_name(hook.__qualname__)
        self._comm_hooks.append((hook, state))

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        self._refuse_with_leaves("a communication hook")
        self._refuse_with_compression("a communication hook", "it is one")
        hooks = {
            dist.BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
            dist.BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
        }
        self.reducer.register_comm_hook(self.process_group, hooks[comm_hook_type])
        self.logger._set_comm_hook_name(str(comm_hook_type))

    def _check_comm_hook(self, hook: Callable[..., Any]) -> None:
        try:
            super()._check_comm_hook(hook)
        except TypeError as error:
            # torch restricts bf16 hooks to CUDA and NCCL; ringdp's backend sums bfloat16 on the CPU.
            if self.device_type != "cpu" or "BF16" not in str(error):
                raise

    def _build_params_for_reducer(self) -> tuple[list[torch.Tensor], list[bool]]:
        # torch looks up the ignored parameters of the outermost module as ".name", and so would average them.
        self.parameters_to_ignore |= {f".{name}" for name in self.parameters_to_ignore if "." not in name}
        parameters, sparse = super()._build_params_for_reducer()
        if not self._models_checked:  # before the models' values are synchronised
            self._models_checked = True
            names = self._names_of(parameters)
            self._modes.check_group(self.process_group, self.device)
            check_models(
                self.process_group,
                self.device,
                names,
                parameters,
                self._settings,
                compare_values=self._keeps_values,
            )
        return parameters, sparse

    def _names_of(self, parameters: Sequence[torch.Tensor]) -> list[str]:
        names = self._build_debug_param_to_name_mapping(parameters)
        return [names[index].removeprefix(".") for index in range(len(parameters))]

    def _ddp_init_helper(
        self,
        parameters: Sequence[torch.Tensor],
        expect_sparse_gradient: Sequence[bool],
        param_to_name_mapping: object,
        static_graph: bool,
    ) -> None:
        """At construction and after unpickling: the reducer and its logger."""
        if self.mixed_precision is not None:
            for index, parameter in enumerate(parameters):
                parameter._idx = index
        names = self._names_of(parameters)
        self.reducer = Reducer(self, parameters, names, expect_sparse_gradient, self._modes, made_locally=self._is_copy)
        if self._modes.compress is not None:
            named = dict(zip(parameters, names, strict=True))
            self._compression = Compression(self.process_group, named, self._modes.compress, self.reducer)
            is_seldom = isinstance(self._modes.compress, Auto) and not is_in_one_bucket(self._modes.compress)
            self.reducer.register_comm_hook(None, self._compression, always=not is_seldom)
            self.reducer.compression = self._compression
            self.reducer.keep_layout()  # as the residuals of means are with the owner of a part
        self._static_graph_delay_allreduce_enqueued = False  # a copy's reducer has not seen a pass yet
        if self._delay_all_reduce_params and self._delayed_mean is None:
            self._delayed_mean = mean_over(self.process_group, self.device, self._modes)
        self.logger = Logger(self.reducer, self.process_group)
        self.reducer.set_logger(self.logger)
        self.logger.set_construction_data_and_log(
            self.module.__class__.__name__,
            self.device_ids or [],
            -1 if self.output_device is None else self.output_device,
            self.broadcast_buffers,
            any(isinstance(m, SyncBatchNorm) for m in self.module.modules()),
            static_graph,
            bucket_cap_bytes=self.bucket_bytes_cap,
            find_unused_parameters=self.find_unused_parameters,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
        )
        self._passing_sync_batchnorm_handle(self.module)
        self._frozen = self._frozen_parameters()
        self._register_shards()
        if self.process_group.size() > 1:
            registrations.watch(self)
            unaveraged.install()

    def _frozen_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters that are not averaged, because they need no gradient when the model is wrapped."""
        known = {id(parameter) for parameter in self.averaged_parameters()}
        left = self.module.named_parameters()
        return [(n, p) for n, p in left if id(p) not in known and n not in self.parameters_to_ignore]

    def _check_frozen(self) -> None:
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise RuntimeError(
                    f"DistributedDataParallel: parameter {name} was frozen when the model was wrapped and needs a "
                    "gradient now, which would not be averaged: wrap the model again after requires_grad has changed"
                )

    def _register_delay_all_reduce_hook(self, *args: Any, **kwargs: Any) -> None:
        self._delayed_mean = mean_over(self.process_group, self.device, self._modes)
        super()._register_delay_all_reduce_hook(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        if self.sharded_model is not None:
            refuse_copy(self, None)
        self._refuse_with_compression("a copy", "residuals belong to one wrapper")
        return {
            **super().__getstate__(),
            "_delayed_mean": None,
            "_optimizer": None,
            "new_parameters": None,
            "_is_copy": True,
        }

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if not self._delay_all_reduce_all_params:  # otherwise there is no reducer
            self.reducer.stop_shared_allocation()
            if torch.is_grad_enabled():
                self._check_frozen()
                if self._compression is not None:
                    self._compression.begin_pass()
                if self._modes.micro_batches is not None:
                    self._enter_leaf()
                elif not self.require_backward_grad_sync:
                    self.reducer.keep_gradients()
            elif self._modes.micro_batches is not None:
                self._look_in_leaf()
        if self.sharded_model is not None:
            self.sharded_model.begin_forward()
        return super()._pre_forward(*inputs, **kwargs)

    @_disable_dynamo
    def _enter_leaf(self) -> None:
        self.reducer.leaf_steps.enter()

    @_disable_dynamo
    def _share_gradients_of_leaf(self) -> None:
        self.reducer.share_gradients_of_leaf()

    @_disable_dynamo
    def _look_in_leaf(self) -> None:
        self.reducer.leaf_steps.look()

    def _post_forward(self, output: Any) -> Any:
        if self.sharded_model is not None:
            self.sharded_model.end_forward()
        if self._modes.micro_batches is not None and torch.is_grad_enabled() and not self._delay_all_reduce_all_params:
            self._share_gradients_of_leaf()
        return super()._post_forward(output)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """As torch's: passes that begin inside add up this rank's own gradients in .grad and communicate nothing."""
        self._refuse_with_leaves("no_sync()")
        with super().no_sync():
            if not self._delay_all_reduce_all_params:
                self.reducer.keep_gradients()
            yield

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """As torch's; at stage 3 not compiled."""
        run = super().forward if self.sharded_model is None else self._forward_uncompiled
        return run(*inputs, **kwargs)

    @_disable_dynamo
    def _forward_uncompiled(self, *inputs: Any, **kwargs: Any) -> Any:
        return super().forward(*inputs, **kwargs)

    def _delayed_all_reduce_hook(self, grad: torch.Tensor) -> torch.Tensor:
        """Starts the mean of the delayed parameters' gradients; the end of the backward pass waits for it."""
        reduction = self._delayed_mean.start(self._delay_grad_buffer, float(self.process_group.size()))
        Variable._execution_engine.queue_callback(reduction.finish)
        return grad

    def _set_static_graph(self) -> None:
        self._refuse_with_leaves("a static graph")
        super()._set_static_graph()

    def join(self, *args: Any, **kwargs: Any) -> Any:
        """As torch's; NotImplementedError from stage 1 on."""
        self._check_join()
        return super().join(*args, **kwargs)

    def join_hook(self, **kwargs: Any) -> Any:
        """As torch's, for its Join; NotImplementedError as join()."""
        self._check_join()
        return super().join_hook(**kwargs)

    def _check_join(self) -> None:
        self._refuse_with_leaves("join()")
        self._refuse_with_compression("join()", "a rank without inputs has no residuals")
        if self.zero_stage:
            raise NotImplementedError(
                f"DistributedDataParallel.join: with zero_stage={self.zero_stage} every rank steps its part: "
                "ranks that have run out of samples call backward(None, weight=0) and step instead"
            )
        if getattr(self, "skip_all_reduce_unused_params", False):
            raise NotImplementedError(
                "DistributedDataParallel.join: a rank without inputs does not know which buckets the others skip: "
                "leave skip_all_reduce_unused_params out"
            )

    # join(): what a rank without inputs does while others still have some.

    def _check_global_requires_backward_grad_sync(self, is_joined_rank: bool) -> bool | None:
        """As torch's, but a joined rank keeps the sum, the number of ranks that still have inputs, as the divisor."""
        synchronises = not is_joined_rank and self.require_backward_grad_sync
        ranks = torch.ones(1, device=self.device) if synchronises else torch.zeros(1, device=self.device)
        work = dist.all_reduce(ranks, group=self.process_group, async_op=True)
        if not is_joined_rank:
            return None
        work.wait()
        self._live_ranks = int(ranks.item())
        return self._live_ranks != 0

    def _match_all_reduce_for_bwd_pass(self) -> None:
        ranks = self.process_group.size() if self._divide_by_initial_world_size else self._live_ranks
        self.reducer.shadow_backward(float(ranks))

    def _match_unused_params_allreduce(self) -> None:
        """Nothing: shadow_backward() has done it."""
