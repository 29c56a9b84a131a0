"""Queues between ranks: :class:`shardwire.Queue` (docs/queue.md).

``queue``: the users' class; ``works``: the works of puts, and transactions; ``content``: entries as bytes; ``entries``:
the entries, getters and putters of one queue; ``hub``: this rank's queues and links; ``held_link`` and ``use_link``:
the two ends of a link; ``wire``: the messages of a link.
"""

from queue import Empty

from .queue import Queue
from .works import QueueWork, Transaction

TransactionContextManager = Transaction  # moodist's name

__all__ = ["Empty", "Queue", "QueueWork", "Transaction", "TransactionContextManager"]
