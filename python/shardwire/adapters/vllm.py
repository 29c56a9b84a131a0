"""shardwire as a weight transfer of vLLM: from a trainer on any mesh into vLLM's workers, version by version. See
docs/adapters.md.

The trainer publishes (``shardwire.publish``), the workers of each engine subscribe together; no rank gathers a whole
tensor unless a worker asks for whole tensors. :func:`register` enters both ends in vLLM's factories as "shardwire";
where shardwire is installed by pip, vLLM itself calls register in every process (vLLM's general plugins).

Written for vLLM's interface with trainer engines (``TrainerWeightTransferEngine``, ``WeightSource``), by vLLM's public
source.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.distributed as dist
from vllm.distributed.weight_transfer.base import (TrainerInitInfo, TrainerWeightTransferEngine, WeightTransferEngine,
                                                   WeightTransferInitInfo, WeightTransferUpdateInfo)

from ..groups import torch_backend
from ..groups.lookup import create_over_fresh_store, end_process_group, store_of
from ..weights import Publication, Subscription, publish, subscribe
from ..compiler.agree import Meeting
from ..weights.publishing import own_group

_SLACK_S = 10.0  # for the sender's other ranks, which wait while the sender drives the workers


@dataclass
class ShardwireInitInfo(WeightTransferInitInfo):
    """The trainer's information for the workers, given once. Plain values: the object may be sent as JSON.

    store, name: as in ``shardwire.subscribe``.
    layouts: "module:function" of the worker. The function is called with (model, vllm_config) and returns the layouts
        for subscribe, over the ranks of the engine's own torch group; weights are then written in place. None: every
        worker gets whole tensors, and gives them to ``model.load_weights``.
    mapping: the name of a ready table of names, such as "llama"; only with layouts. timeout: seconds for finding the
        publisher, and for each update.
    """

    store: str
    name: str = "policy"
    layouts: str | None = None
    mapping: str | None = None
    timeout: float = 600.0


@dataclass
class ShardwireUpdateInfo(WeightTransferUpdateInfo):
    version: int


class ShardwireWeightTransferEngine(WeightTransferEngine[ShardwireInitInfo, ShardwireUpdateInfo]):
    """A worker's end. All workers of an engine receive each call, as from vLLM's collective_rpc."""

    init_info_cls = ShardwireInitInfo
    update_info_cls = ShardwireUpdateInfo
    supports_draft_weight_update = False  # the subscription is to one model

    _subscription: Subscription | None = None
    _group: Any = None
    _in_place = False

    def init_transfer_engine(self, init_info: ShardwireInitInfo) -> None:
        """Finds the publisher and compiles the movement. A second call ends the first call's subscription."""
        self.shutdown()
        layouts = None
        if init_info.layouts is not None:
            layouts = _function(init_info.layouts)(self.model, self.vllm_config)
        elif init_info.mapping is not None:
            raise ValueError(f"mapping is {init_info.mapping!r} without layouts: model.load_weights wants the names as "
                             "the trainer has them")
        self._in_place = layouts is not None
        self._group = _workers(init_info)
        self._subscription = subscribe(init_info.store, init_info.name, layouts, self._group, mapping=init_info.mapping,
                                       timeout=init_info.timeout)

    def start_weight_update(self) -> None:
        if self._subscription is not None and not self._in_place:
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ShardwireUpdateInfo) -> None:
        """Returns when the model has the requested version. Raises the errors of ``fetch``, the same on every
        worker."""
        if self._subscription is None:
            raise RuntimeError(
                "init_transfer_engine was not called, or shutdown was: there is no publisher to fetch from")
        self._subscription.fetch(update_info.version)
        if not self._in_place:
            self.model.load_weights(self._subscription.target.items())

    def finish_weight_update(self) -> None:
        if self._subscription is not None and not self._in_place:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
        group, self._group = self._group, None
        if group is not None:
            end_process_group(group)


@dataclass
class ShardwireTrainerInitInfo(TrainerInitInfo):
    """One trainer rank's end.

    store, name, layouts, mapping, timeout: as in :class:`ShardwireInitInfo`, which the sender makes from these fields.
    state: the argument of ``shardwire.publish``: the model itself, DTensors included; nothing is gathered. None: the
        whole tensors of ``source``, from rank 0. group: of the trainer's ranks; None: the default group, which must be
        shardwire's, or this process alone where there is none.
    buffers, patience: as in ``publish``.
    """

    backend: ClassVar[str] = "shardwire"

    store: str
    name: str = "policy"
    state: Any = None
    layouts: str | None = None
    mapping: str | None = None
    group: Any = None
    buffers: int = 2
    patience: float = 10.0
    timeout: float = 600.0


class ShardwireTrainerWeightTransferEngine(TrainerWeightTransferEngine[ShardwireTrainerInitInfo]):
    """The result of ``trainer_init``. ``send_weights()`` on every trainer rank publishes the present weights as the
    next version and has the workers fetch this version."""

    init_info_cls = ShardwireTrainerInitInfo

    def __init__(self, publication: Publication, meeting: Meeting, taken: dict[str, Any] | None, *, client: Any,
                 source: Any, is_sender: bool) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._publication = publication
        self._meeting = meeting
        self._taken = taken
        self._version = 0

    @classmethod
    def trainer_init(cls, init_info: ShardwireTrainerInitInfo, *, client: Any,
                     source: Any = None) -> ShardwireTrainerWeightTransferEngine:
        state, taken = init_info.state, None
        if state is None:
            if source is None:
                raise ValueError("give init_info a state (a module or a dict: nothing is gathered), or a WeightSource")
            described = source.metadata()  # on every rank, since metadata() may be a collective
            taken = ({each.name: torch_backend.empty(tuple(each.shape), dtype=each.dtype) for each in described}
                     if init_info.is_sender else {})
            state = taken or None
        group = own_group(init_info.group, init_info.timeout)
        publication = publish(init_info.store, init_info.name, state, group, buffers=init_info.buffers,
                              patience=init_info.patience, timeout=init_info.timeout)
        # The workers' own limit is one timeout for finding the publisher and one more for each update.
        engine = cls(publication, Meeting(group, "publish", 2 * init_info.timeout + _SLACK_S), taken, client=client,
                     source=source, is_sender=init_info.is_sender)
        settings = {"store": init_info.store, "name": init_info.name, "layouts": init_info.layouts,
                    "mapping": init_info.mapping, "timeout": init_info.timeout}
        try:
            engine._together(lambda: client.init_weight_transfer_engine(settings) if init_info.is_sender else None)
        except BaseException:
            engine.shutdown()
            raise
        return engine

    def send_weights(self) -> None:
        """Returns on every rank when all workers have the version; or raises the same on every rank, and the workers'
        ``version`` shows the version that each holds."""
        self._together(self._send)

    def _send(self) -> None:
        self._version += 1  # also where this rank alone fails below: all ranks count alike
        if self._taken is not None:
            self._take()
        self._publication.commit(self._version)
        if self.is_sender:
            self.client.start_weight_update()
            self.client.update_weights({"version": self._version})
            self.client.finish_weight_update()

    def _together(self, step: Callable[[], None]) -> None:
        """Runs a step on all ranks, and settles errors. Without the settling a rank could run ahead and commit versions
        that push out the version that workers still fetch."""
        with self._meeting.together():
            step()

    def _take(self) -> None:
        """Copies the tensors from the source. All ranks iterate over the source, since producing a tensor may be a
        collective."""
        assert self._taken is not None and self.source is not None
        seen = set()
        for name, tensor in self.source:
            if not self.is_sender:
                continue
            if name not in self._taken:
                raise ValueError(f"the WeightSource yields {name!r}, which its metadata() does not have")
            self._taken[name].copy_(tensor.detach())
            seen.add(name)
        missing = [name for name in self._taken if name not in seen]
        if missing:
            raise ValueError(f"the WeightSource did not yield {', '.join(map(repr, missing[:8]))}, which its "
                             "metadata() has")

    def shutdown(self) -> None:
        """Ends the publication: workers that fetch later get an error."""
        self._publication.close()


def _workers(init_info: ShardwireInitInfo) -> Any:
    """A group of the engine's workers, beside vLLM's own group: of all processes in the engine's torch group, or of
    this process alone."""
    if not dist.is_initialized():
        return create_over_fresh_store(dist.HashStore(), 0, 1, init_info.timeout, None, standalone=True)
    # The store's prefix has a number counted by this adapter, since processes may have made different numbers of
    # groups: all workers of an engine make the same calls of the adapter.
    store = dist.PrefixStore(f"shardwire.adapters.vllm/{_counted(init_info.name)}", store_of(dist.group.WORLD))
    return create_over_fresh_store(store, dist.get_rank(), dist.get_world_size(), init_info.timeout, None,
                                   standalone=True)


_made: dict[str, int] = {}


def _counted(name: str) -> str:
    _made[name] = _made.get(name, 0) + 1
    return f"{name}/{_made[name]}"


def _function(path: str) -> Callable[..., Any]:
    module, colon, name = path.partition(":")
    if not colon:
        raise ValueError(f"layouts is {path!r}; give 'module:function' as the workers import it")
    found = getattr(importlib.import_module(module), name, None)
    if not callable(found):
        raise ValueError(f"layouts is {path!r}, and {module} has no function {name}")
    return found


def register() -> None:
    """Enters both ends in vLLM's factories as "shardwire", unless they are registered already."""
    import shardwire_autoload

    shardwire_autoload.register_in_vllm()
