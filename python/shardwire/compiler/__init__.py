"""compile_op and its parts: layouts, specs, the choice of the planning rank, futures, and the calls with their own
compiled movement."""
