"""Makes ``init_process_group("shardwire")`` work without ``import shardwire``.

torch calls :func:`register` through the entry points ``torch.backends`` (at the end of ``import torch``, from 2.5 on) and
``torch.distributed.backends`` (when the name is first used, from 2.14 on); ``import shardwire`` calls it as well. It only registers a function:
the package itself is imported when the first group is made. Set ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` to keep torch from calling it.

Registering any third-party backend has one effect on others: on torch 2.6 to 2.13 groups made with a "device:backend" string such as
``cpu:gloo`` then report ``undefined`` as their name. Their collectives are not affected.
"""

import warnings

NAME = "shardwire"


def devices():
    """The kinds of devices whose tensors a group of ours takes: the CPU, those that this torch was built for, and one that a package brought."""
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
    """Registers the backend with torch.distributed unless that was done. Never raises: an exception here would break ``import torch``.

    Call it again after a package has brought a new kind of device: groups made from then on take its tensors too.
    """
    try:
        import torch.distributed as dist

        if not dist.is_available():
            return
        if not hasattr(dist.Backend, NAME.upper()):
            _register(dist)
        if hasattr(dist.Backend, "backend_capability"):
            dist.Backend.backend_capability[NAME] = devices()
    except Exception as error:
        warnings.warn(f"shardwire could not register its torch.distributed backend: {error}")


def _register(dist):
    try:
        # For the CPU alone, for which torch has a default: it would make us the default of devices for which it has none yet.
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    except TypeError:  # torch 1.13 knows no devices
        dist.Backend.register_backend(NAME, _create, extended_api=True)


def _create(options, backend_options):
    """What torch calls to make a group's backend."""
    from shardwire._backend import create_from_options

    return create_from_options(options, backend_options)
