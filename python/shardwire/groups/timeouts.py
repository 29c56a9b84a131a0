"""The timeouts of torch's calls."""

from __future__ import annotations

from datetime import timedelta

DEFAULT_TIMEOUT = timedelta(minutes=30)  # torch's default
# c10d counts milliseconds, and reads 0 as no timeout
_SHORTEST = timedelta(milliseconds=1)
# Infinity and longer times count as so many seconds, 30 years, which every clock can add to its time
LONGEST_S = 1e9


def as_timeout(timeout: timedelta | float | None) -> timedelta:
    """``timeout`` as a timedelta; None means torch's default of 30 minutes, 0 means now. Raises TypeError for other
    types, ValueError for a negative time."""
    if timeout is None:
        return DEFAULT_TIMEOUT
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        timeout = timedelta(seconds=min(timeout, LONGEST_S))
    if not isinstance(timeout, timedelta):
        raise TypeError(f"timeout is a {type(timeout).__name__}; give seconds (float) or a timedelta")
    timeout = min(timeout, timedelta(seconds=LONGEST_S))
    if timeout < timedelta(0):
        raise ValueError(f"timeout is {timeout}; give a time that is not negative")
    return max(timeout, _SHORTEST)
