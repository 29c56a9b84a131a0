"""Makes ``init_process_group("shardwire")`` work without ``import shardwire``, also by ``init_method="mpi://"`` and
under srun and mpirun.

torch calls :func:`register` through the entry points ``torch.backends`` (at the end of ``import torch``, from 2.5 on)
and ``torch.distributed.backends`` (when the name is first used, from 2.14 on); ``import shardwire`` calls ``register``
as well. ``register`` only registers functions: the package is imported when the first group is made. With
``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` torch does not call ``register``. Older torches call nothing: their programs import
shardwire.

``env://``, torch's default, is led through a function of ours: where RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT is
missing and the group is to be ours, ``shardwire.groups.env`` takes the launcher's variables instead. Other calls go on
to torch's handler unchanged.

With ``SHARDWIRE_AS=gloo`` a program that asks torch for gloo gets shardwire: :func:`stand_in_for`. docs/drop-in.md.

Registering any third-party backend has one effect on others: on torch 2.6 to 2.13 groups made with a "device:backend"
string such as ``cpu:gloo`` then report ``undefined`` as their name. Their collectives are not affected.
"""

import contextlib
import functools
import inspect
import os
import sys
import threading
import warnings
from typing import Any

NAME = "shardwire"
OF_TORCH = "torch_gloo"  # the name of torch's own gloo, where ours stands in for gloo
_torchs_gloo: Any = None  # the class of torch's own gloo, then


def devices():
    """The kinds of devices whose tensors a group of ours takes: the CPU, the kinds of this build of torch, and one kind
    that a package brought."""
    import torch

    kinds = ["cpu"]
    if getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None):
        kinds.append("cuda")
    if getattr(torch.version, "xpu", None):
        kinds.append("xpu")
    named = getattr(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")()
    if named != "privateuseone":
        kinds.append(named)
    return kinds


def register(*_ignored):
    """Registers the backend with torch.distributed, once. Never raises: an exception here would break ``import torch``.

    A further call, after a package has brought a new kind of device: later groups take tensors of the new kind too.
    """
    try:
        import torch.distributed as dist

        if not dist.is_available():
            return
        if not hasattr(dist.Backend, NAME.upper()):
            _register_for_cpu(dist, NAME, _create, extended_api=True)
        if hasattr(dist.Backend, "backend_capability"):
            dist.Backend.backend_capability[NAME] = devices()
        _register_rendezvous()
        if os.environ.get("SHARDWIRE_AS"):
            stand_in_for(os.environ["SHARDWIRE_AS"])
    except Exception as error:
        warnings.warn(f"shardwire could not register its torch.distributed backend: {error}")


def stand_in_for(name):
    """From now on groups that are made by the name ``name`` are shardwire's: "gloo", alone, as the default, or in
    strings such as "cpu:gloo,cuda:nccl".

    torch and ``get_backend`` take these groups for gloo's, so code that looks for the name gloo works. torch's own gloo
    is "torch_gloo" then. Present groups do not change. In this process only: SHARDWIRE_AS=gloo in the environment holds
    for children as well. ValueError for another name.
    """
    global _torchs_gloo
    if name != "gloo":
        raise ValueError(f"shardwire stands in for gloo, not for {name!r}: set SHARDWIRE_AS=gloo, or leave it out")
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if _torchs_gloo is not None:
        return
    if not dist.is_available() or not hasattr(c10d, "ProcessGroupGloo"):
        raise RuntimeError("this torch was built without gloo: there is nothing to stand in for; use the name "
                           "shardwire")
    torchs = c10d.ProcessGroupGloo
    if hasattr(c10d.Backend, "_ensure_backend_registered"):
        c10d.Backend._ensure_backend_registered("gloo")  # torch registers its own backends at their first use
    plugin = c10d.Backend._plugins.get("GLOO")
    if plugin is not None:  # from torch 2.14 on each backend, gloo too, is made by the plugin of the name
        dist.Backend.register_backend(OF_TORCH, plugin.creator_fn, extended_api=plugin.extended_api, devices=["cpu"])
        c10d.Backend._plugins["GLOO"] = type(plugin)(_create_for_gloo, True)
    else:
        _register_for_cpu(dist, OF_TORCH,
                          lambda store, rank, size, timeout: torchs(store, rank, size, timeout=timeout))
    _watch_groups(c10d, by_class=plugin is None)
    _torchs_gloo = torchs
    c10d.ProcessGroupGloo = _StandIn
    _keep_ddp_from_reading_gloo()


def _register_for_cpu(dist, name, creator, **more):
    """For the CPU alone, since torch has a default for the CPU: we would become the default of devices without one."""
    try:
        dist.Backend.register_backend(name, creator, devices=["cpu"], **more)
    except TypeError:  # torch 1.13 knows no devices
        dist.Backend.register_backend(name, creator, **more)


class _Making(threading.local):
    """The arguments of this thread's call of torch's helper, while torch makes gloo there by calling the class; else
    None."""

    group = None

    @contextlib.contextmanager
    def of(self, group):
        before, self.group = self.group, group
        try:
            yield
        finally:
            self.group = before


_making = _Making()


def _watch_groups(c10d, by_class):
    """Leads torch's maker of groups through here. Where torch makes gloo ``by_class``, the stand-in learns the group of
    the call. On every torch a group that was to be gloo's and is not ours gives a warning.
    """
    make, wrap_for_debug = c10d._new_process_group_helper, c10d._create_process_group_wrapper
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_and_look(*args, **named):
        group = signature.bind(*args, **named).arguments
        # torch 1.13 names a group later, by this number
        group["group_name"] = group.get("group_name") or str(c10d._group_count)
        with _making.of(group if by_class else None):
            made = make(*args, **named)
        _warn_unless_ours(c10d, group, made[0] if isinstance(made, tuple) else made)
        return made

    @functools.wraps(wrap_for_debug)
    def wrap_with_gloo(*args, **named):
        with _making.of(None):  # the gloo by which TORCH_DISTRIBUTED_DEBUG=DETAIL compares calls is torch's
            return wrap_for_debug(*args, **named)

    c10d._new_process_group_helper, c10d._create_process_group_wrapper = make_and_look, wrap_with_gloo


def _warn_unless_ours(c10d, group, made):
    name = c10d.Backend(str(group["backend"]))
    if hasattr(c10d, "BackendConfig"):
        name = c10d.BackendConfig(name).get_device_backend_map().get("cpu")
    if name != "gloo" or not isinstance(made, c10d.ProcessGroup):  # another backend, or a group without this rank
        return
    from shardwire.groups.lookup import shardwire_behind

    is_hidden = isinstance(made, c10d._ProcessGroupWrapper)  # torch 1.13 does not say which group is wrapped
    if shardwire_behind(made) is None and not is_hidden:
        import torch

        warnings.warn(f"the group {group['group_name']!r} was asked for by the name gloo, for which shardwire stands "
                      f"in, but torch {torch.__version__} made it in another way: it is not shardwire's. Ask for it by "
                      "the name shardwire", stacklevel=4)


class _StandInType(type):
    """torch asks by the name in torch's module whether a backend is gloo, and before 2.14 makes a group's gloo by
    calling this name: both come here."""

    def __call__(cls, store, rank, size, *more, **named):
        group = _making.group
        if group is None:  # a direct call of the class gives torch's gloo
            return _torchs_gloo(store, rank, size, *more, **named)
        from shardwire.groups.create import create_in_place_of_gloo

        timeout = named.get("timeout", more[0] if more else None)
        return create_in_place_of_gloo(store, rank, size, timeout, group["group_name"],
                                       list(group["global_ranks_in_group"]))

    def __instancecheck__(cls, thing):
        if isinstance(thing, _torchs_gloo):
            return True
        ours = sys.modules.get("shardwire._C")
        return ours is not None and ours.is_backend(thing)

    def __getattr__(cls, name):
        return getattr(_torchs_gloo, name)


class _StandIn(metaclass=_StandInType):
    """In the place of torch's ProcessGroupGloo."""


def _keep_ddp_from_reading_gloo():
    """torch's DDP logs values that DDP reads from a ProcessGroupGloo. DDP takes each group with gloo's C++ name for a
    ProcessGroupGloo, so from a group of ours DDP would read foreign memory.

    So while DDP sets up, such a group has another C++ name. Afterwards DDP's log gets gloo's values: the name, the
    variables, and the number of threads of a real gloo.
    """
    from torch.nn.parallel import DistributedDataParallel

    set_up, data = DistributedDataParallel._ddp_init_helper, DistributedDataParallel._get_ddp_logging_data

    @functools.wraps(set_up)
    def _ddp_init_helper(self, *arguments, **named):
        with _unread(self.process_group):
            return set_up(self, *arguments, **named)

    @functools.wraps(data)
    def _get_ddp_logging_data(self):
        import torch.distributed as dist

        logged = data(self)
        if logged.get("backend_name") != "gloo" and dist.get_backend(self.process_group) == "gloo":
            logged.update(backend_name="gloo", gloo_num_threads=_torchs_gloo._Options()._threads, **{
                name.lower(): os.environ.get(name, "N/A") for name in ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT")})
        return logged

    DistributedDataParallel._ddp_init_helper = _ddp_init_helper
    DistributedDataParallel._get_ddp_logging_data = _get_ddp_logging_data


@contextlib.contextmanager
def _unread(group):
    """torch's C++ finds no gloo in the group, unless the group has torch's own gloo. Before torch 2.0 the group is our
    object, and has our name."""
    import torch
    from torch.distributed import distributed_c10d as c10d

    cpu = torch.device("cpu")
    backend = group._get_backend(cpu) if hasattr(group, "_set_default_backend") and group.name() == "gloo" else None
    if backend is None or isinstance(backend, _torchs_gloo):
        yield
        return

    def call_it(kind):  # an entry of this kind too, for torch's questions to a group's default backend
        group._register_backend(cpu, kind, backend)
        group._set_default_backend(kind)

    call_it(c10d.ProcessGroup.BackendType.UNDEFINED)
    try:
        yield
    finally:
        call_it(c10d.ProcessGroup.BackendType.GLOO)


def register_in_vllm():
    """Enters ``shardwire.adapters.vllm`` in vLLM's factories of weight transfers as "shardwire". vLLM calls this
    function in all processes of vLLM (``vllm.general_plugins``)."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    except ImportError:  # an older vLLM, without trainer engines
        return
    for factory, name in ((WeightTransferEngineFactory, "ShardwireWeightTransferEngine"),
                          (WeightTransferTrainerFactory, "ShardwireTrainerWeightTransferEngine")):
        with contextlib.suppress(ValueError):  # entered before
            factory.register_engine(NAME, "shardwire.adapters.vllm", name)


def _create(options, backend_options, for_gloo=False):
    """Makes a group's backend, for torch."""
    if getattr(options, "enable_reconfigure", False):
        from shardwire.survive.members import create_reconfigurable

        return create_reconfigurable(options, backend_options, for_gloo)
    from shardwire.groups.create import create_from_options

    return create_from_options(options, backend_options, for_gloo)


def _create_for_gloo(options, backend_options):
    """As _create, for a group by the name gloo."""
    return _create(options, backend_options, for_gloo=True)


def _register_rendezvous():
    # Not dist.rendezvous, which is a function of this module.
    module = sys.modules["torch.distributed.rendezvous"]
    handlers = getattr(module, "_rendezvous_handlers", None)
    if handlers is None:  # a later torch: torch's own error names the missing variable then
        return
    if "mpi" not in handlers:
        module.register_rendezvous_handler("mpi", _meet_by_mpi)
    elif getattr(handlers["mpi"], "__module__", None) != __name__:
        warnings.warn(f"another package ({getattr(handlers['mpi'], '__module__', '?')}) has taken mpi:// in torch: "
                      "shardwire's init_method='mpi://' is not there")
    if NAME not in handlers:
        module.register_rendezvous_handler(NAME, _meet_by_tcp)
    original = handlers.get("env")
    if original is not None and getattr(original, "__module__", None) != __name__:
        handlers["env"] = lambda url, **options: _meet_by_environment(original, url, **options)


def _meet_by_mpi(url, **options):
    from shardwire.groups.mpi import rendezvous

    return rendezvous(url, **options)


def _meet_by_tcp(url, **options):
    from shardwire.groups.tcp_store import rendezvous

    return rendezvous(url, **options)


def _meet_by_environment(original, url, **options):
    if _is_for_us(sys._getframe(1)):
        from shardwire.groups.env import missing_from, rendezvous

        if missing_from(url, os.environ):
            return rendezvous(url, **options)
    return original(url, **options)


def _is_for_us(frame):
    """Whether a call of init_process_group for a backend of ours stands behind this frame: torch gives a rendezvous no
    name of the backend."""
    for _ in range(6):
        if frame is None:
            return False
        if frame.f_code.co_name == "init_process_group":
            asked = str(frame.f_locals.get("backend")).lower()
            # Without a name torch takes gloo for the CPU.
            return NAME in asked or (_torchs_gloo is not None
                                     and (asked in ("none", "undefined") or "gloo" in asked.replace(OF_TORCH, "")))
        frame = frame.f_back
    return False
