"""The options of torch's TCPStore where torch was built without libuv. Debian's builds since 2.6 are such builds, and
ask for libuv all the same unless the caller refuses it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def _lacks_libuv() -> bool:
    if TORCH < (2, 3):  # does not know the option
        return False
    try:
        dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=True)
    except RuntimeError:
        return True
    return False


_LACKS = _lacks_libuv()
NO_LIBUV = {"use_libuv": False} if _LACKS else {}  # arguments of TCPStore
NO_LIBUV_ENV = {"USE_LIBUV": "0"} if _LACKS else {}  # variables of programs that make one
