"""A stand-in for the part of vLLM that shardwire.adapters.vllm uses, where vLLM is not installed. test_vllm_server.py
uses a real vLLM.

The stand-in has only the names, signatures and abstract methods of vLLM's public
``vllm/distributed/weight_transfer/{base,factory}.py`` and of the reload module: a method that vLLM would call and the
adapter lacks is an error here too.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Generic, TypeVar

InitInfo = TypeVar("InitInfo")
UpdateInfo = TypeVar("UpdateInfo")
TrainerInfo = TypeVar("TrainerInfo")


@dataclass
class WeightTransferInitInfo(ABC):  # noqa: B024
    pass


@dataclass
class WeightTransferUpdateInfo(ABC):  # noqa: B024
    pass


@dataclass
class TrainerInitInfo:
    backend: ClassVar[str]
    _: KW_ONLY
    rank: int

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if not getattr(cls, "backend", None):
            raise TypeError(f"{cls.__name__} needs a backend")

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


@dataclass(frozen=True)
class ParamMeta:
    name: str
    dtype: Any
    shape: tuple[int, ...]


class WeightTransferEngine(ABC, Generic[InitInfo, UpdateInfo]):
    init_info_cls: type
    update_info_cls: type
    supports_draft_weight_update = True

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.parallel_config, self.model_config = vllm_config.parallel_config, vllm_config.model_config

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        try:
            return self.init_info_cls(**init_dict)
        except TypeError as error:
            raise ValueError(f"invalid init_info: {error}") from error

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            parsed = self.update_info_cls(**update_info)
        except TypeError as error:
            raise ValueError(f"invalid update_info: {error}") from error
        self.receive_weights(parsed)

    @abstractmethod
    def init_transfer_engine(self, init_info: Any) -> None: ...

    @abstractmethod
    def start_weight_update(self) -> None: ...

    @abstractmethod
    def finish_weight_update(self) -> None: ...

    @abstractmethod
    def receive_weights(self, update_info: Any) -> None: ...

    @abstractmethod
    def shutdown(self) -> None: ...


class TrainerWeightTransferEngine(ABC, Generic[TrainerInfo]):
    init_info_cls: type

    def __init__(self, *, client: Any, source: Any = None, is_sender: bool = True) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender

    @classmethod
    @abstractmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any: ...

    @abstractmethod
    def send_weights(self) -> None: ...

    def shutdown(self) -> None:
        """Nothing, unless an engine has something."""


class _Factory:
    _registry: dict[str, Callable[[], type]]

    @classmethod
    def register_engine(cls, name: str, module_path_or_cls: Any, class_name: str | None = None) -> None:
        if name in cls._registry:
            raise ValueError(f"{name!r} is registered already")
        if isinstance(module_path_or_cls, str):
            assert class_name is not None
            cls._registry[name] = lambda: getattr(importlib.import_module(module_path_or_cls), class_name)
        else:
            cls._registry[name] = lambda: module_path_or_cls


class WeightTransferEngineFactory(_Factory):
    _registry: dict[str, Callable[[], type]] = {}

    @classmethod
    def create_engine(cls, config: Any, vllm_config: Any, device: Any, model: Any) -> Any:
        return cls._registry[config.backend]()(config, vllm_config, device, model)


class WeightTransferTrainerFactory(_Factory):
    _registry: dict[str, Callable[[], type]] = {}

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any:
        return cls._registry[init_info.backend]().trainer_init(init_info, client=client, source=source)


reloads: list[str] = []  # the requests to the reload module


def install() -> None:
    """Registers the stand-in as the module of ``import vllm``."""
    here = sys.modules[__name__]
    base = {name: getattr(here, name)
            for name in ("ParamMeta", "TrainerInitInfo", "TrainerWeightTransferEngine", "WeightTransferEngine",
                         "WeightTransferInitInfo", "WeightTransferUpdateInfo")}
    factories = {"WeightTransferEngineFactory": WeightTransferEngineFactory,
                 "WeightTransferTrainerFactory": WeightTransferTrainerFactory}
    reload = {"initialize_layerwise_reload": lambda model: reloads.append("initialize"),
              "finalize_layerwise_reload": lambda model, model_config: reloads.append("finalize")}
    for name, content in {"vllm": {}, "vllm.distributed": {}, "vllm.distributed.weight_transfer": {},
                          "vllm.distributed.weight_transfer.base": base,
                          "vllm.distributed.weight_transfer.factory": factories, "vllm.model_executor": {},
                          "vllm.model_executor.model_loader": {},
                          "vllm.model_executor.model_loader.reload": reload}.items():
        module = types.ModuleType(name)
        # a module that looks for vLLM in vain must not fail on the stand-in
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(content)
        sys.modules[name] = module
