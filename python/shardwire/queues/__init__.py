"""Queues between ranks: :class:`shardwire.Queue` (docs/queue.md).

``queue``: the users' class; ``works``: the works of puts, and transactions; ``content``: entries as bytes; ``hub``:
this rank's queues and links; ``use_link``: the user's end of a link; ``wire``: the numbers of messages and outcomes.
The holder's end of a link, and the entries, are C++ (backend/queues).
"""

from queue import Empty

from .queue import Queue
from .works import QueueWork, Transaction

TransactionContextManager = Transaction  # moodist's name

__all__ = ["Empty", "Queue", "QueueWork", "Transaction", "TransactionContextManager"]
