"""Queues between ranks: :class:`shardwire.Queue` (docs/queue.md).

``queue`` what users call; ``works`` what a put returns, and transactions; ``content`` entries as bytes; ``entries`` what a queue holds and who waits;
``hub`` this rank's queues and links; ``held_link`` and ``use_link`` the two ends of a link; ``wire`` its messages.
"""

from .queue import Queue
from .works import QueueWork, Transaction

__all__ = ["Queue", "QueueWork", "Transaction"]
